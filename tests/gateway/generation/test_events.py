"""The way from a generation to its reader."""

from __future__ import annotations

import asyncio

from gateway.generation.items import EventBuffer
from inference.types import Delta, FinishReason, PositionLogprobs, Started, TokenLogprob, Usage


async def test_events_come_out_in_order_and_waiting_deltas_joined():
    box = EventBuffer()
    box.put(Started(0))
    box.put(Delta("a", Usage(1, 0, 1)))
    box.put(Delta("b", Usage(1, 0, 2)))
    assert await box.get() == Started(0)
    assert await box.get() == Delta("ab", Usage(1, 0, 2))


async def test_waiting_thoughts_are_joined_apart_from_text():
    box = EventBuffer()
    for delta in (
        Delta("", Usage(1, 0, 0, 1), reasoning="a"),
        Delta("", Usage(1, 0, 0, 2), reasoning="b"),
        Delta("c", Usage(1, 0, 1, 2)),
        Delta("d", Usage(1, 0, 2, 2)),
        Delta("", Usage(1, 0, 2, 3), reasoning="e"),
    ):
        box.put(delta)
    assert await box.get() == Delta("", Usage(1, 0, 0, 2), reasoning="ab")
    assert await box.get() == Delta("cd", Usage(1, 0, 2, 2))
    assert await box.get() == Delta("", Usage(1, 0, 2, 3), reasoning="e")


async def test_delta_taken_is_not_joined_with_the_next():
    box = EventBuffer()
    box.put(Delta("a", Usage(1, 0, 1)))
    assert await box.get() == Delta("a", Usage(1, 0, 1))
    box.put(Delta("b", Usage(1, 0, 2)))
    assert await box.get() == Delta("b", Usage(1, 0, 2))


async def test_reader_that_waits_gets_what_comes():
    box = EventBuffer()
    reading = asyncio.ensure_future(box.get())
    await asyncio.sleep(0)
    box.put(Started(3))
    assert await reading == Started(3)


async def test_too_much_unread_text_is_told_until_it_is_read():
    box = EventBuffer(most_unread=3)
    box.put(Delta("abc", Usage()))
    assert not box.is_overfull
    box.put(Delta("d", Usage()))
    assert box.is_overfull
    await box.get()
    assert not box.is_overfull


async def test_deltas_with_more_than_text_of_the_only_answer_are_not_joined():
    box = EventBuffer(most_unread=500)
    told = PositionLogprobs(TokenLogprob(7, -0.5, "b"), 1, (TokenLogprob(7, -0.5, "b"),))
    deltas = [
        Delta("a", Usage(1, 0, 1)),
        Delta("b", Usage(1, 0, 2), logprobs=(told,)),
        Delta("c", Usage(1, 0, 3), index=1),
        Delta("d", Usage(1, 0, 4), ended=FinishReason.STOP),
        Delta("e", Usage(1, 0, 5)),
    ]
    for delta in deltas:
        box.put(delta)
    assert not box.is_overfull
    for _ in range(4):
        box.put(deltas[1])  # what is told of a token counts, not only its text
    assert box.is_overfull
    for delta in [*deltas, *4 * [deltas[1]]]:
        assert await box.get() == delta
    assert not box.is_overfull
