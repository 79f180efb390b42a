"""What the engine's pieces mean for an answer's items."""

from __future__ import annotations

from gateway.generation.items import ItemKind, Narrator, What
from inference.messages import Message, Reasoning, ToolCall
from inference.types import CallPiece, Delta, FinishReason, PositionLogprobs, TokenLogprob, Usage

USAGE = Usage()


def told(narrator, *deltas):
    """Every change as (what, kind, number, text)."""
    return [
        (change.what.value, change.item.kind.value, change.item.number, change.text)
        for delta in deltas
        for change in narrator.take(delta)
    ]


def test_text_is_one_message():
    narrator = Narrator()
    assert told(narrator, Delta("", USAGE), Delta("a", USAGE), Delta("", USAGE), Delta("b", USAGE)) == [
        ("began", "message", 0, ""),
        ("grew", "message", 0, "a"),
        ("grew", "message", 0, "b"),
    ]
    assert narrator.answers[0].text == "ab"
    assert narrator.answers[0].message == Message("assistant", ("ab",))


def test_thought_text_and_calls_are_items_in_their_order():
    narrator = Narrator()
    deltas = [
        Delta("", USAGE, reasoning="hm"),
        Delta("", USAGE, reasoning="!"),
        Delta("Wait.", USAGE),
        Delta("", USAGE, calls=(CallPiece("c1", "f"), CallPiece(arguments='{"a"'))),
        Delta("", USAGE, calls=(CallPiece(arguments=":1}"), CallPiece("c2", "f", "{}", 1))),
    ]
    assert told(narrator, *deltas) == [
        ("began", "reasoning", 0, ""),
        ("grew", "reasoning", 0, "hm"),
        ("grew", "reasoning", 0, "!"),
        ("ended", "reasoning", 0, ""),
        ("began", "message", 1, ""),
        ("grew", "message", 1, "Wait."),
        ("ended", "message", 1, ""),
        ("began", "call", 2, ""),
        ("grew", "call", 2, '{"a"'),
        ("grew", "call", 2, ":1}"),
        ("ended", "call", 2, ""),
        ("began", "call", 3, ""),
        ("grew", "call", 3, "{}"),
    ]
    answer = narrator.answers[0]
    assert (answer.text, answer.reasoning) == ("Wait.", "hm!")
    assert [(call.place, call.call_id, call.name, call.text) for call in answer.calls] == [
        (0, "c1", "f", '{"a":1}'),
        (1, "c2", "f", "{}"),
    ]
    assert answer.message.parts == (
        Reasoning("hm!"),
        "Wait.",
        ToolCall("c1", "f", '{"a":1}'),
        ToolCall("c2", "f", "{}"),
    )


def test_answers_have_items_of_their_own():
    narrator = Narrator(2)
    narrator.take(Delta("a", USAGE, index=1))
    narrator.take(Delta("b", USAGE))
    narrator.take(Delta("c", USAGE, index=1, ended=FinishReason.LENGTH))
    assert [(answer.text, answer.ended) for answer in narrator.answers] == [("b", None), ("ac", FinishReason.LENGTH)]


def test_logprobs_stay_with_their_text():
    narrator = Narrator()
    entry = PositionLogprobs(TokenLogprob(7, -0.5, "a"), 1)
    [_, grew] = narrator.take(Delta("a", USAGE, logprobs=(entry,)))
    assert grew.logprobs == (entry,)
    narrator.take(Delta("", USAGE, logprobs=(entry,)))  # text that is held back
    narrator.take(Delta("", USAGE, prompt_logprobs=(entry,)))
    assert narrator.answers[0].logprobs == [entry, entry]
    assert narrator.answers[0].prompt_logprobs == [entry]


def test_plain_text_goes_on_with_the_open_message_alone():
    narrator = Narrator(2)
    assert not narrator.extend(Delta("a", USAGE))  # no message is open yet
    narrator.take(Delta("a", USAGE))
    assert narrator.extend(Delta("b", USAGE))
    assert not narrator.extend(Delta("c", USAGE, index=1))
    narrator.take(Delta("c", USAGE, index=1))
    assert narrator.extend(Delta("d", USAGE))
    narrator.take(Delta("", USAGE, calls=(CallPiece("c1", "f"),)))
    assert not narrator.extend(Delta("e", USAGE))
    narrator.take(Delta("e", USAGE))
    assert [item.text for item in narrator.answers[0].items] == ["abd", "", "e"]
    assert narrator.answers[1].text == "c"


def test_an_empty_answer_may_have_a_message():
    narrator = Narrator()
    assert narrator.close() == []
    [change] = narrator.close(with_message=True)
    assert (change.what, change.item.kind, change.item.text) == (What.BEGAN, ItemKind.MESSAGE, "")
    assert narrator.close(with_message=True) == []


INTERLEAVED = [
    Delta("", USAGE, calls=(CallPiece("c1", "f", '{"x"'), CallPiece("c2", "g", '{"y"', 1))),
    Delta("\n", USAGE),
    Delta("", USAGE, calls=(CallPiece(arguments=":2}", index=1),)),
    Delta("", USAGE, calls=(CallPiece(arguments=":1}"),)),
    Delta("!", USAGE),
]


def test_pieces_of_several_calls_in_turn_are_told_call_after_call():
    narrator = Narrator()
    assert told(narrator, *INTERLEAVED) == [
        ("began", "call", 0, ""),
        ("grew", "call", 0, '{"x"'),
        ("grew", "call", 0, ":1}"),
        ("ended", "call", 0, ""),
        ("began", "call", 1, ""),
        ("grew", "call", 1, '{"y"'),
        ("grew", "call", 1, ":2}"),
        ("ended", "call", 1, ""),
        ("began", "message", 2, ""),
        ("grew", "message", 2, "\n"),
        ("grew", "message", 2, "!"),
    ]
    assert narrator.extend(Delta("?", USAGE))
    assert [item.text for item in narrator.answers[0].items] == ['{"x":1}', '{"y":2}', "\n!?"]


def test_an_api_that_takes_them_in_turn_is_told_as_they_come():
    narrator = Narrator(in_turn=False)
    assert told(narrator, *INTERLEAVED) == [
        ("began", "call", 0, ""),
        ("grew", "call", 0, '{"x"'),
        ("began", "call", 1, ""),
        ("grew", "call", 1, '{"y"'),
        ("began", "message", 2, ""),
        ("grew", "message", 2, "\n"),
        ("grew", "call", 1, ":2}"),
        ("grew", "call", 0, ":1}"),
        ("grew", "message", 2, "!"),
    ]


def test_what_waits_for_a_call_that_is_never_whole_is_told_at_the_end():
    narrator = Narrator()
    narrator.take(Delta("", USAGE, calls=(CallPiece("c1", "f", "{"), CallPiece("c2", "g", "{}", 1))))
    assert not narrator.take(Delta("a", USAGE))
    assert not narrator.extend(Delta("b", USAGE)), "it would be told before the calls"
    narrator.take(Delta("b", USAGE))
    assert [(change.what.value, change.item.number, change.text) for change in narrator.close()] == [
        ("ended", 0, ""),
        ("began", 1, ""),
        ("grew", 1, "{}"),
        ("ended", 1, ""),
        ("began", 2, ""),
        ("grew", 2, "a"),
        ("grew", 2, "b"),
    ]
