"""When a stream that is silent says that it is alive, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from base.http import EventStream

PING = b": ping\n\n"


@dataclass(eq=False)
class Timer:
    when: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self):
        self.is_cancelled = True


@dataclass
class Clock:
    """The part of a loop that a stream uses; `go_to` calls what is due on the way."""

    now: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def time(self):
        return self.now

    def call_later(self, seconds, callback):
        assert seconds > 0, "it would look without end"
        self.timers.append(Timer(self.now + seconds, callback))
        return self.timers[-1]

    def create_task(self, work):
        return asyncio.get_running_loop().create_task(work)

    async def go_to(self, moment):
        while due := [timer for timer in self.timers if timer.when <= moment]:
            timer = min(due, key=lambda one: one.when)
            self.timers.remove(timer)
            self.now = timer.when
            if not timer.is_cancelled:
                timer.callback()
                await asyncio.sleep(0)
        self.now = moment


async def test_a_comment_comes_after_each_ten_seconds_of_silence_and_none_after_the_end(monkeypatch):
    sent, clock = [], Clock()

    async def send(message):
        sent.append(message.get("body"))

    stream = EventStream(send, {})
    monkeypatch.setattr(stream, "_loop", clock)
    async with stream:
        for moment, expected in ((7, 0), (9.9, 0), (10, 0), (16.9, 0), (17, 1), (26.9, 1), (27, 2)):
            await clock.go_to(moment)
            assert sent.count(PING) == expected, moment
            if moment == 7:
                await stream.write(b"data: {}\n\n")
        await stream.finish(b"data: [DONE]\n\n")
        await clock.go_to(100)
    assert sent[-1] == b"data: [DONE]\n\n"
