"""The choice between ready replicas: weights, load, cached beginnings; and the index that knows of those."""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.catalogue import DeploymentEntry, NodeEntry, ReplicaEntry
from routing.places import WINDOW, Option, choose
from routing.prefix import CHUNK_BYTES, MOST_CHUNKS, PrefixIndex, chain


def deployment(weight=1):
    return DeploymentEntry(uuid4(), "d", "m", "worker", "", {}, weight=weight)


ONE = deployment()


def option(load=0, matched=0, weight=1, of=ONE, name="n"):
    return Option(of, ReplicaEntry(uuid4(), NodeEntry(name), weight), load, matched)


def draws(*values):
    return cycle(values).__next__


def test_the_less_busy_of_two_drawn_is_chosen():
    busy, idle = option(500), option(100)
    for draw in (draws(0.0), draws(0.99), draws(0.0, 0.99)):
        assert choose([busy, idle], draw).option is idle


def test_of_many_only_two_are_compared():
    """Else every gateway would send everything to the one that seemed idle in the last sample."""
    options = [option(load) for load in (0, 10, 20, 30, 40)]
    chosen = choose(options, draws(0.5, 0.99))
    assert chosen.option is options[2]
    assert [reason for _, reason in chosen.passed] == ["not drawn", "not drawn", "not drawn", "busier"]


def test_load_is_shared_by_the_replicas_weights():
    strong, weak = option(900, weight=4), option(300)
    assert choose([strong, weak], random.random).option is strong
    idle = [option(weight=3), option()]
    count = Counter(choose(idle, random.Random(number).random).option is idle[0] for number in range(2000))
    assert 0.4 < count[True] / 2000 < 0.85


def test_cached_beginning_decides_within_the_window_only():
    holder, other = option(WINDOW, matched=640), option(0)
    assert choose([holder, other], random.random).option is holder
    holder = option(WINDOW + 1, matched=640)
    choice = choose([holder, other], random.random)
    assert choice.option is other
    assert choice.passed == ((holder, "too busy for its cached beginning of 640 tokens"),)


def test_the_longest_cached_beginning_wins_and_then_the_less_busy_holder():
    short, long, busier = option(0, matched=64), option(100, matched=128), option(200, matched=128)
    choice = choose([short, long, busier], random.random)
    assert choice.option is long
    assert {one.replica.id: why for one, why in choice.passed} == {
        short.replica.id: "has 64 tokens of the prompt cached, the chosen one 128",
        busier.replica.id: "busier",
    }


def test_a_canary_gets_its_share_however_idle_it_is():
    canary, rest = deployment(weight=1), deployment(weight=19)
    options = [option(5000, of=rest), option(5000, of=rest), option(0, of=canary)]
    source = random.Random(1)
    share = sum(choose(options, source.random).option is options[2] for _ in range(4000)) / 4000
    assert 0.03 < share < 0.07


def test_deployments_of_one_weight_are_one_pool():
    first, second = deployment(), deployment()
    idle, busy = option(0, of=second), option(900, of=first)
    assert choose([busy, idle], random.random).option is idle


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900), st.integers(1, 3)), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_whatever_the_options_one_is_chosen_and_every_other_has_a_reason(given_options, seed):
    options = [option(load, matched, of=deployment(weight)) for load, matched, weight in given_options]
    choice = choose(options, random.Random(seed).random)
    assert choice.option in options
    assert {one.replica.id for one, _ in choice.passed} == {o.replica.id for o in options} - {choice.option.replica.id}
    assert all(reason for _, reason in choice.passed)


def test_chain_is_of_full_chunks_rooted_in_model_and_tenant():
    text = "x" * (3 * CHUNK_BYTES)
    whole = chain(("m", "t"), [text])
    assert len(whole) == 3
    assert len(set(whole)) == 3, "each digest is of everything before it too"
    assert chain(("m", "t"), [text[:CHUNK_BYTES]]) == whole[:1]
    assert chain(("m", "t"), [text[: CHUNK_BYTES - 2]]) == ()
    for root in (("m", "u"), ("n", "t")):
        assert not set(chain(root, [text])) & set(whole)
    assert len(chain(("m", "t"), ["x" * 10_000_000])) == MOST_CHUNKS
    assert chain(("m", "t"), ["\udc80" * CHUNK_BYTES])  # half a character is the engine's to refuse


def test_index_matches_leading_digests_and_forgets_the_oldest():
    index = PrefixIndex(most=3)
    a, b, c, d = (bytes([n]) for n in range(4))
    assert index.add((a, b)) == ()
    assert (index.matched((a, b, c)), index.matched((b,)), index.matched((c, a))) == (2, 1, 0)
    assert index.add((a, c)) == (1,)
    index.add((d,))
    assert len(index) == 3
    assert index.matched((b,)) == 0, "least recently used"


@pytest.mark.parametrize("stamp", [1, 2])
def test_what_is_as_old_as_something_that_was_gone_is_forgotten(stamp):
    index = PrefixIndex(most=10)
    for number in range(4):
        index.add((bytes([number]),))
    index.forget(stamp)
    assert [index.matched((bytes([number]),)) for number in range(4)] == [0] * stamp + [1] * (4 - stamp)
