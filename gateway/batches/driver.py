"""Runs the lines of open batches in this gateway, a few at a time, beside its other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from base.database.threads import DatabaseThreads
from gateway.batches.claims import Answer, Claims, Task
from gateway.batches.outcomes import NotSentError, Reply, UnknownError

GATHER_SECONDS = 0.05
WAIT_SECONDS = 0.25
IDLE_SECONDS = 1.0
BACK_OFF_SECONDS = 10.0

log = structlog.get_logger(__name__)

Ask = Callable[[Task, bool], Awaitable[Reply]]
"""Has a line run, unless it ran already or (True) its batch is over, and returns its answer."""


class Driver:
    """At most `slots` lines run at a time. Nothing new begins while `rests()`."""

    def __init__(self, ask: Ask, threads: DatabaseThreads, slots: int, rests: Callable[[], bool]) -> None:
        self._ask = ask
        self._threads = threads
        self._rests = rests
        self._claims = Claims(slots)
        self._slots = asyncio.Semaphore(slots)
        self._running: dict[asyncio.Task[Reply | Exception], Task] = {}

    async def keep(self) -> None:
        """Run what is due until cancelled. Lines that run then are asked for by whoever takes them next."""
        try:
            while True:
                try:
                    if not await self.step():
                        await asyncio.sleep(IDLE_SECONDS)
                except Exception:
                    log.exception("batch_lines_failed")
                    await asyncio.sleep(BACK_OFF_SECONDS)
        finally:
            self.close()

    async def step(self) -> bool:
        """Note what was answered and begin more; return whether lines run."""
        answers = await self._gathered()
        tasks = await self._threads.run(partial(self._claims.step, answers, takes=not self._rests()))
        for task in tasks:
            self._running[asyncio.create_task(self._run(task))] = task
        return bool(self._running)

    def close(self) -> None:
        """Wait for no answer any more."""
        for running in self._running:
            running.cancel()
        self._running.clear()

    async def _gathered(self) -> list[Answer]:
        """Return the answers that have come, waiting for the first a little, and for some more even less."""
        if not self._running:
            return []
        done, rest = await asyncio.wait(self._running, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if done and rest:
            more, _ = await asyncio.wait(rest, timeout=GATHER_SECONDS)
            done |= more
        return [Answer(self._running.pop(one), _result_of(one)) for one in done]

    async def _run(self, task: Task) -> Reply | Exception:
        if not isinstance(task.body, bytes):
            return task.body
        async with self._slots:
            is_over = self._claims.is_over(task.batch.id)
            if (is_over or self._rests()) and not task.may_have_run:
                return NotSentError("the batch is over, or this gateway is about to end")
            try:
                return await self._ask(task, is_over)
            except Exception as error:
                log.exception("batch_line_failed", batch=str(task.batch), line=task.line.number)
                return UnknownError(str(error))


def _result_of(done: asyncio.Task[Reply | Exception]) -> Reply | Exception:
    return UnknownError("the line was cut off") if done.cancelled() else done.result()
