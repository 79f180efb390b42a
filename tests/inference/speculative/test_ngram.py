"""Drafts from the text itself."""

from __future__ import annotations

import random

import pytest

from inference.core.sequence import Sequence
from inference.speculative import ngram
from inference.speculative.ngram import Drafter, NgramIndex, NgramProposer


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([], ()),
        ([1], ()),
        ([1, 2, 3, 4], ()),
        ([7, 8, 9, 1, 7, 8], (9, 1, 7)),
        ([7, 8, 1, 7, 8, 2, 7, 8], (2, 7, 8)),  # the latest occurrence
        ([5, 6, 7, 8, 1, 9, 7, 8, 2, 5, 6, 7, 8], (1, 9, 7)),  # a longer n-gram before a later shorter one
        ([3, 3, 3], (3, 3, 3)),
        ([1, 2, 1, 2, 1, 2], (1, 2, 1)),
    ],
)
def test_what_follows(tokens: list[int], drafts: tuple[int, ...]) -> None:
    assert NgramIndex(tokens).continuation(3) == drafts


def slow(tokens: list[int], count: int) -> tuple[int, ...]:
    for length in ngram.LENGTHS:
        for place in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) >= length and tokens[place - length : place] == tokens[-length:]:
                copy = list(tokens)
                for i in range(count):
                    copy.append(copy[place + i])
                return tuple(copy[len(tokens) :])
    return ()


def test_the_index_that_grows_finds_what_a_search_finds() -> None:
    chance = random.Random(3)
    tokens: list[int] = []
    index = NgramIndex(tokens)
    for _ in range(600):
        tokens += [chance.randrange(5) for _ in range(chance.randrange(4))]
        assert index.continuation(5) == slow(tokens, 5)


def test_each_token_is_indexed_once() -> None:
    class Counting(list[int]):
        reads = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            Counting.reads += 1
            return super().__getitem__(key)

    tokens = Counting(range(1000))
    index = NgramIndex(tokens)
    index.continuation(4)
    Counting.reads = 0
    tokens.append(1)
    index.continuation(4)
    assert Counting.reads <= 2 * len(ngram.LENGTHS) + 4


def test_a_request_whose_drafts_are_wrong_rests_and_tries_again() -> None:
    tokens = [1, 2] * 20
    drafter = Drafter(tokens)
    tried = 0
    while tried < 20 and drafter.propose(4):
        tokens += [3 + tried, 1, 2]
        tried += 1
    assert 3 < tried < 20
    tokens += [1, 2] * (ngram.REST // 2)
    for _ in range(100):
        drafts = drafter.propose(4)
        assert drafts
        tokens += drafts
    assert drafter.propose(4) == (1, 2, 1, 2)


def test_drafts_become_more_while_they_are_right_and_few_after_a_wrong_one() -> None:
    """Wrong ones cost time, the more the longer they are."""
    tokens = [1, 2] * 20
    drafter = Drafter(tokens)
    lengths = []
    for _ in range(4):
        drafts = drafter.propose(8)
        lengths.append(len(drafts))
        tokens += drafts
    assert lengths == [2, 4, 8, 8]
    tokens += [*drafter.propose(8)[:3], 50, 1, 2, 1, 2]
    assert len(drafter.propose(8)) == 3


def test_a_step_that_is_repeated_is_not_judged() -> None:
    drafter = Drafter([1, 2] * 20)
    assert all(drafter.propose(4) for _ in range(200))


def test_what_is_known_of_a_sequence_goes_with_it() -> None:
    proposer = NgramProposer(3)
    seq = Sequence("r", "t", "d", (1, 2, 1, 2, 1, 2), 5, 5)
    assert proposer(seq, 9) == (1, 2)
    seq.tokens += [1, 2]
    assert proposer(seq, 9) == (1, 2, 1)
    assert proposer(seq, 1) == (1,)
    assert len(proposer._drafters) == 1
    del seq
    assert not proposer._drafters
