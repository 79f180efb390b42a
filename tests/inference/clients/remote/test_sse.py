"""Events as they arrive: however they are cut and however many come together, the same answer is read."""

from __future__ import annotations

import json
from itertools import chain, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.clients.remote import sse
from inference.clients.remote.sse import EventReader, Texts


def event(delta, **more):
    """One event of a stream, with what servers put around the text."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps({**body, **more}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def texts(words):
    return [event({"content": word}) for word in words]


def read(pieces):
    """What is read of these pieces of a stream, one event after the other, and how that ends."""
    reader, found = EventReader(), []
    for piece in pieces:
        events, failure = reader.events(piece)
        for one in events:
            if isinstance(one, Texts):
                found += [sse.Chunk(choices=[sse.Choice(delta=sse.Piece(content=text))]) for text in one.texts]
            else:
                found.append(one)
        if failure is not None or reader.is_ended:
            return found, str(failure or "ended")
    return found, ""


OPENING = event({"role": "assistant", "content": ""})
OTHERS = [
    OPENING,
    b": ping\n\n",
    b"event: message\n",
    b"data: [DONE]\n\n",
    b"data: {broken\n\n",
    b"data:\n\n",
    b"no event\n\n",
    b"\r\n",
    event({"reasoning_content": "hm"}),
    event({"content": "x", "reasoning": "y"}),
    event({"content": "x"}, usage={"prompt_tokens": 1, "completion_tokens": 1}),
    event({}, error={"message": "gone"}),
    texts(["a"])[0].replace(b"\n\n", b"\r\n\r\n"),
    texts(["a"])[0].replace(b"data: ", b"data:"),
    texts(["a"])[0].replace(b'"content":"a"', b'"content":"a","content":"b"'),
    texts(["a"])[0].replace(b'"content":"a"', b'"content":"a\tb"'),
    texts(["a"])[0].replace(b'"content":"a"', b'"content":"a\\"'),
    texts(["a"])[0].replace(b'"index":0', b'"index":1'),
    texts(["a"])[0].replace(b'"content":"a"', b'"content":"a","b"'),
    texts(["a"])[0][:-1] + b"no event\n",
]
WORDS = st.lists(
    st.text(max_size=8) | st.sampled_from(["", '"', "\\", '\\"', "\n", "é", '","']), min_size=4, max_size=9
)
PLAIN = WORDS.map(texts)
COUNTED = WORDS.map(lambda words: [event({"content": word}, usage={"completion_tokens": 3}) for word in words])
STREAMS = st.lists(PLAIN | COUNTED | st.sampled_from(OTHERS).map(lambda one: [one]), min_size=1, max_size=5).map(
    lambda parts: list(chain.from_iterable(parts))
)


@settings(max_examples=300, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 4000), max_size=2))
@example([b"data: [DONE]\n\n", *texts("abcdef")], [])
@example([b"no event\n\n", *texts("abcdef")], [])
def test_what_arrives_together_is_read_as_if_each_event_came_alone(stream, cuts):
    whole = b"".join(stream)
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[start:end] for start, end in pairwise(places)]
    assert read(pieces) == read(whole.splitlines(keepends=True))


def test_many_that_differ_in_their_text_alone_are_decoded_at_once(monkeypatch):
    words = [f"word{number} \\n é" for number in range(64)]
    end = event({}, usage={"completion_tokens": 64}) + b"data: [DONE]\n\n"
    reader = EventReader()
    [opening, found, last], failure = reader.events(b"".join([OPENING, *texts(words), end]))
    assert (opening.choices[0].delta.content, last.usage, failure) == ("", {"completion_tokens": 64}, None)
    assert found == Texts(words)
    assert reader.is_ended


@pytest.mark.parametrize("other", OTHERS[8:11] + OTHERS[14:])
def test_a_stretch_that_something_else_interrupts_is_read_event_by_event(other):
    stream = [OPENING, *texts("abcd"), other, *texts("efgh")]
    events, failure = EventReader().events(b"".join(stream))
    assert not any(isinstance(one, Texts) for one in events)
    assert (events, str(failure or "")) == read(stream)
