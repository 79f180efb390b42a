"""A run of an endpoint whose answer is kept: its messages go into a log instead of to a client.

The answer is stored when it is complete and before anything of it is settled; only then do its readers get its end. So
whatever a gateway's death leaves behind is either a stored answer, which is charged, or none, which is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

import structlog

from base.http import Application, ASGIMessage, ClientLeftError, Scope, encode, event
from gateway.durable.answers import Stored
from gateway.durable.delivery import Closings, Delivery, delivering
from gateway.durable.log import EventLog, Head, events_of
from gateway.errors.faults import refusal_of
from gateway.errors.refusal import Refusal, internal_error

_MOMENTARY = ("x-ratelimit-", "retry-after", "set-cookie")  # headers that say nothing later

FIRST_SECONDS = 10.0  # the request that began a run may wait for long until it reads
ELSEWHERE_SECONDS = 10.0  # readers at other gateways are noted each second, where the database is quick

log = structlog.get_logger(__name__)


class Shelf(Protocol):
    """The store of answers, as a keeper needs it."""

    async def store(
        self, run: UUID, answer: Stored, closings: Closings, also: list[Callable[[], object]]
    ) -> bool | None: ...

    async def forget(self, run: UUID, *, was_told: bool) -> None: ...

    async def seconds_since_reader(self, run: UUID) -> float | None: ...


def nobody_read(seconds: float) -> Refusal:
    """The error that ends an answer which nobody read for as long as the plan allows."""
    text = f"Nobody read this answer for {seconds:g} s, so it was ended. What was generated is charged."
    return Refusal(409, "answer_abandoned", text, should_retry=False, has_record=True)


def answer_lost() -> Refusal:
    """The error for an answer that couldn't be stored, so that it isn't charged either."""
    text = "The answer couldn't be stored, so it isn't charged: send the request again."
    return Refusal(503, "answer_lost", text, headers={"retry-after": "1"}, has_record=True)


class Keeper:
    """The answer of one run: its `log`, and its readers. When the last reader is gone for `grace` seconds (None: for
    ever), the run is ended. `take` counts the bytes of the log, and raises a Refusal, which ends the run, for what is
    too much.
    """

    def __init__(
        self, run: UUID, shelf: Shelf, event_log: EventLog, *, grace: float | None, take: Callable[[int], object]
    ) -> None:
        self.run_id = run
        self.log = event_log
        self.delivery = Delivery(run)
        self._shelf = shelf
        self._grace = grace
        self._take = take
        self._client = _Client()
        self._readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._ended_by: Refusal | None = None
        self._is_full = False
        self._whole: list[bytes] = []  # of an answer in one piece

    # -- readers --------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[EventLog]:
        """Yield the log to one more reader."""
        self._readers += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield self.log
        finally:
            self._readers -= 1
            self._wait_for_readers()

    def _wait_for_readers(self, seconds: float | None = None) -> None:
        if self._readers or self._grace is None or self.log.is_ended:
            return
        wait = self._grace if seconds is None else seconds
        self._timer = asyncio.get_running_loop().call_later(wait, self._look_for_readers)

    def _look_for_readers(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._end_without_readers())

    async def _end_without_readers(self) -> None:
        """End the run, unless somebody reads it at another gateway."""
        assert self._grace is not None
        elsewhere = await self._shelf.seconds_since_reader(self.run_id)
        patience = max(self._grace, ELSEWHERE_SECONDS)
        if elsewhere is not None and elsewhere < patience:
            self._wait_for_readers(patience - elsewhere)
        elif not self._readers and self.delivery.needs_reader:
            self.leave(nobody_read(self._grace))

    def leave(self, reason: Refusal) -> None:
        """End the run as if its client had left: what was generated is charged, and the answer is that with `reason`
        behind it.
        """
        if self._ended_by is None and not self.log.is_ended:
            self._ended_by = reason
            self._client.leave()

    # -- the run --------------------------------------------------------------------------------------------------

    async def run(self, endpoint: Application, scope: Scope, body: bytes) -> None:
        """Run the endpoint on the request to its end. The log has ended then, and every hold is decided about."""
        self._wait_for_readers(FIRST_SECONDS)
        delivering.set(self.delivery)  # this task's own, and that of the tasks it starts
        failure: Refusal | None = None
        try:
            self._client.body = body
            await endpoint({**scope, "connection": self._client}, self._client.receive, self._send)
        except ClientLeftError:
            await self._end_early(scope)
        except Exception as error:  # its readers get it, as they would have without a log between
            failure = refusal_of(error)
            if failure is None:
                log.exception("unhandled", path=scope["path"])
                failure = internal_error()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if not self.log.is_ended:
                await self._give_up(failure or internal_error())

    async def _send(self, message: ASGIMessage) -> None:
        """Take what the endpoint sends; the last of it returns when it is stored and settled."""
        if message["type"] == "http.response.start":
            named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
            headers = tuple(pair for pair in named if pair[0] != "content-length")
            is_stream = dict(headers).get("content-type", "").startswith("text/event-stream")
            self.log.begin(Head(message["status"], headers, is_stream))
            return
        data = message.get("body", b"")
        events = self._events_in(data)
        if not message.get("more_body", False):
            await self._finish(events)
        elif not self._is_full:
            try:
                self._take(len(data))
            except Refusal as refusal:
                self._is_full = True
                self.leave(refusal)
            else:
                self.log.append(*events)

    def _events_in(self, data: bytes) -> list[bytes]:
        assert self.log.head is not None, "a body follows a head"
        if not self.log.head.is_stream:
            self._whole.append(data)
            return []
        return events_of(data)

    async def _finish(self, events: list[bytes]) -> None:
        """Store the whole answer, have it settled, and give its readers the rest."""
        head = self.log.head
        assert head is not None, "an answer has a head"
        last = events if head.is_stream else [b"".join(self._whole)]
        if self.delivery.is_failed:
            await self._forget(was_told=True)
        elif not await self._store(head, last):
            await self._give_up(answer_lost())
            return
        await self.delivery.all_settled()
        self.log.append(*last)
        self.log.end()

    async def _store(self, head: Head, last: list[bytes]) -> bool | None:
        headers = tuple(pair for pair in head.headers if not pair[0].startswith(_MOMENTARY))
        answer = Stored(Head(head.status, headers, head.is_stream), b"".join([*self.log.events, *last]))
        is_stored = await self._shelf.store(self.run_id, answer, self.delivery.closings, self.delivery.also)
        self.delivery.decide(is_stored=is_stored)
        return is_stored

    async def _end_early(self, scope: Scope) -> None:
        """End an answer that was left: with what there is and the reason, if anything of it is charged."""
        reason = self._ended_by or internal_error()
        await self.delivery.all_ended()
        if not self.delivery.is_charged:
            await self._give_up(reason)
            return
        body = encode(scope["exchange"].route.error_body(reason, self.run_id))
        if self.log.head is None:
            self.log.begin(Head(reason.status, (("content-type", "application/json"), *reason.headers.items()), False))
        if self.log.head is not None and self.log.head.is_stream:
            await self._finish([event(body, "error")])
        else:
            self._whole = [body]
            await self._finish([])

    async def _give_up(self, failure: Refusal) -> None:
        """End without an answer: nothing is charged, and the next request with the key runs anew."""
        await self._forget(was_told=bool(self.log.events))
        await self.delivery.all_settled()
        self.log.end(failure)

    async def _forget(self, *, was_told: bool) -> None:
        self.delivery.decide(is_stored=False)
        await self._shelf.forget(self.run_id, was_told=was_told)


class _Client:
    """The client that a kept endpoint sees: it sent its whole body, and leaves when nobody wants the answer any more.

    It is the request's `Connection` too (`base.http`).
    """

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.is_lost = False
        self.has_message = True
        self.on_lost: Callable[[], None] | None = None
        self._left = asyncio.Event()

    def leave(self) -> None:
        """Be gone."""
        self.is_lost = True
        self._left.set()
        if self.on_lost is not None:
            self.on_lost()

    async def receive(self) -> ASGIMessage:
        """Return the body once, then wait for the end."""
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}
