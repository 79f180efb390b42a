"""Whatever a server says of its usage, however its stream is cut into pieces: what is counted stays within reason."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.clients.remote.dialects import DIALECTS
from inference.clients.remote.sse import EventReader, GarbageError
from inference.clients.remote.tokens import estimated
from inference.clients.remote.usage import Counter, Report
from inference.types import Usage

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["cached_tokens", "x"]), inner),
    max_leaves=4,
)
NUMBERS = st.integers(0, 40) | ANYTHING
USAGE = ANYTHING | st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": NUMBERS,
        "completion_tokens": NUMBERS,
        "reasoning_tokens": NUMBERS,
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": NUMBERS}) | ANYTHING,
        "completion_tokens_details": st.fixed_dictionaries({"reasoning_tokens": NUMBERS}) | ANYTHING,
    },
)
TIMINGS = ANYTHING | st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt_n", "cache_n", "predicted_n"), NUMBERS))


@given(
    st.sampled_from(sorted(DIALECTS)), st.lists(st.tuples(st.text(max_size=20), USAGE, TIMINGS), max_size=8),
    st.integers(1, 30), st.integers(0, 30),
)  # fmt: skip
def test_no_report_takes_usage_beyond_what_is_paid_for(dialect, events, most_prompt, most_output):
    counter = Counter(min(10, most_prompt), most_prompt, most_output)
    for text, usage, timings in events:
        if text:
            counter.output(text)
        counter.report(DIALECTS[dialect].report(usage, timings))
        found = counter.usage
        assert min(found.input, found.cache_read, found.output, found.reasoning) >= 0
        assert found.prompt <= most_prompt
        assert found.completion <= most_output
        assert found.prompt > 0
        if counter.is_exact:
            assert counter.completion == found.completion


@given(st.lists(st.text(), max_size=5), st.booleans())
def test_an_estimate_lies_above_what_is_likely_and_that_above_the_least(texts, template):
    count = estimated(texts, template=template)
    assert count.least >= 1
    if texts:
        assert count.least <= count.likely <= count.tokens or not any(texts)


def read(pieces):
    """What a stream that arrives in these pieces means."""
    reader, found = EventReader(), []
    for piece in pieces:
        arrived, failure = reader.events(piece)
        found += arrived
        if reader.is_ended:
            break
        if failure is not None:
            raise failure
    return found


def cut(data, places):
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@given(st.lists(st.text(max_size=5), max_size=6), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_a_stream_means_the_same_however_it_is_cut(texts, places, has_returns):
    end = b"\r\n\r\n" if has_returns else b"\n\n"
    events = [b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + end for text in texts]
    whole = b": ping" + end + b"".join(events) + b"data: [DONE]" + end
    assert [chunk.choices[0].delta.content for chunk in read(cut(whole, places))] == texts


@given(st.lists(st.binary(min_size=1, max_size=40) | st.just(b"data: {}\n\n"), max_size=6))
def test_garbage_is_told_as_garbage(pieces):
    with contextlib.suppress(GarbageError):
        read(pieces)


@given(st.integers(0, 5), st.binary(max_size=8).filter(lambda data: b"\n" not in data))
def test_events_before_one_that_cant_be_read_count(before, garbage):
    events, failure = EventReader().events(
        b'data: {"choices": []}\n\n' * before + b"data: {" + garbage + b"\n\ndata: {}\n\n"
    )
    if failure is not None:
        assert len(events) == before


SAID = {"prompt": 10, "cached": 0, "completion": 20}


def counted(*reports, events=20, text="word", most_output=100):
    """A counter of so many events, after which the server says the reports; of the prompt 12 tokens are likely."""
    counter = Counter(12, 16, most_output, least_prompt=8)
    counter.output(text * events, events)
    for report in reports:
        counter.report(Report(**SAID | report))
    counter.complete()
    return counter


@pytest.mark.parametrize(
    ("reports", "usage", "findings"),
    [
        ([{}], Usage(10, 0, 20), ()),
        ([{"completion": 60}], Usage(10, 0, 60), ()),  # several tokens came in one event
        ([{"completion": 2**31 - 1}], Usage(10, 0, 20), ("output_too_large",)),
        ([{"completion": 101}, {}], Usage(10, 0, 20), ("output_too_large",)),
        ([{"completion": 1}], Usage(10, 0, 20), ("output_too_small",)),
        ([{"completion": 19}], Usage(10, 0, 20), ("output_too_small",)),
        ([{"completion": 0}], Usage(10, 0, 20), ("output_too_small",)),
        ([{"completion": 0, "prompt": 0}], Usage(12, 0, 20), ("output_too_small", "prompt_too_small")),
        ([{"completion": 1}, {}], Usage(10, 0, 20), ()),  # it counts behind what it sends, and catches up
        ([{"completion": 90}, {"completion": 20}], Usage(10, 0, 90), ("output_went_back",)),
        ([{"reasoning": 21}], Usage(10, 0, 20), ("reasoning_beyond_output",)),
        ([{"prompt": 17}], Usage(16, 0, 20), ("prompt_beyond_hold",)),
        ([{"prompt": 2**31 - 1}], Usage(12, 0, 20), ("prompt_too_large",)),
        ([{"prompt": 3}], Usage(12, 0, 20), ("prompt_too_small",)),
        ([{"prompt": 4}], Usage(4, 0, 20), ()),
        ([{"cached": 11}], Usage(10, 0, 20), ("cached_beyond_prompt",)),
        ([{"cached": None}], Usage(10, 0, 20), ()),
        ([{"completion": None}], Usage(10, 0, 20), ("usage_not_told",)),
        ([], Usage(12, 0, 20), ("usage_not_told",)),
    ],
)
def test_usage_is_believed_within_what_arrived_and_else_an_estimate_with_a_finding(reports, usage, findings):
    counter = counted(*reports)
    assert (counter.usage, counter.findings, counter.is_exact) == (usage, findings, not findings)


def test_ninety_that_arrived_are_charged_whatever_the_server_says_then():
    counter = counted({}, events=90)
    assert (counter.usage.completion, counter.findings) == (90, ("output_too_small",))


def test_more_output_than_what_arrived_can_be_is_charged_and_marked():
    """Thought that a server keeps back can't be seen, unless it tells how much it was."""
    assert counted({"completion": 4000}, most_output=4096).findings == ("output_beyond_what_arrived",)
    assert counted({"completion": 4000}, most_output=4096).usage.completion == 4000
    assert counted({"completion": 4000, "reasoning": 3980}, most_output=4096).is_exact


def test_few_tokens_for_much_text_are_not_believed():
    counter = counted({}, events=1, text="x" * 10_000, most_output=4096)
    assert (counter.usage.completion, counter.findings) == (1667, ("output_too_small",))


def test_a_stream_that_is_cut_is_no_finding():
    counter = Counter(12, 16, 100)
    counter.report(Report(10, None, 1))
    counter.output("more")
    assert (counter.findings, counter.is_exact) == ((), False)
