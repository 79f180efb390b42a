"""One response that is made into a log instead of for a connection: in the background, or to be gone on reading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec
import structlog

from base.http import ClientLeftError, Receive, Scope, Send, data_of, encode, event, watching
from base.ids import uuid7
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import owner_of
from gateway.apis.responses.events import Event, ResponseEvents, only_end, queued
from gateway.apis.responses.response_object import IncompleteDetails, Response, ResponseFault, Status
from gateway.apis.responses.rows import Owner
from gateway.apis.responses.storing import Storing
from gateway.apis.responses.wire import ResponseRequest
from gateway.apis.shared.answer import relay
from gateway.durable import answers
from gateway.durable.answers import Claim
from gateway.durable.delivery import Delivery, Outcome, delivering
from gateway.durable.keeper import answer_lost
from gateway.durable.log import events_of
from gateway.durable.replays import Answer, DurableRequest
from gateway.errors.faults import refusal_of
from gateway.errors.refusal import internal_error
from gateway.generation.generation import Generation, start_generation
from gateway.generation.intent import Intent
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime

log = structlog.get_logger(__name__)

CANCEL_SECONDS = 10.0
LOOK_SECONDS = 0.5

_HEAD = [(b"content-type", b"text/event-stream; charset=utf-8")]
_DIGEST = b"response"  # the key is the response's own: it stands for no other request


class Asked(NamedTuple):
    """A request that can be answered, and what is stored of it."""

    request: ResponseRequest
    identifier: UUID
    principal: Principal
    intent: Intent
    storing: Storing


def claim_of(owner: Owner, identifier: UUID, user: UUID | None = None) -> Claim:
    """The claim under which the events of a response are kept: a project's, or one user's of it."""
    whose = owner.project.hex if user is None else f"{owner.project.hex}:{user.hex}"
    return Claim(owner.tenant, f"response:{whose}:{identifier.hex}", _DIGEST)


class BackgroundRun:
    """The endpoint that a response in the background is: it writes events, and goes on without readers.

    `response` is as it is stored already.
    """

    def __init__(self, runtime: Runtime, asked: Asked, response: Response) -> None:
        self._runtime = runtime
        self._asked = asked
        self._response = response
        self._starting: asyncio.Task[Generation] | None = None
        self._generation: Generation | None = None
        self._is_cancelled = False
        self._ended = asyncio.Event()

    async def begin(self, scope: Scope) -> Answer:
        """Begin to run, whatever becomes of the client."""
        identifier = self._asked.identifier
        claim = claim_of(owner_of(self._asked.principal), identifier)
        return await self._runtime.replays.answer(DurableRequest(claim, identifier, self, scope, b"", grace=None))

    def cancel(self) -> None:
        """End it as its client's wish; what was generated is charged."""
        self._is_cancelled = True
        if self._generation is not None:
            self._generation.client_left()
        elif self._starting is not None:
            self._starting.cancel()

    async def ended(self) -> None:
        """Wait until it has ended and is stored."""
        await self._ended.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the response."""
        self._runtime.requests.background[self._asked.identifier] = self
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
            await _write(send, queued(self._response))
            await self._make(scope, receive, send)
        finally:
            del self._runtime.requests.background[self._asked.identifier]
            self._ended.set()

    async def _make(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._asked
        async with watching(scope, receive) as client:
            generation = await self._started(send)
            if generation is None:
                client.stop()
                return
            client.stops(generation.client_left)
            self._generation = generation
            if self._is_cancelled:  # in the moment in which it began
                generation.client_left()
            events = ResponseEvents(asked.request, generation, is_stored=True, in_background=True)
            await self._update(events.response)
            await _write(send, events.opening())
            async with aclosing(generation.events()) as happening:
                outcome = await relay(happening, events.delta, partial(_write, send))
            client.stop()
            if client.left:  # more is kept than may be: what there is is charged, and stored with its events' error
                response = events.ended(outcome)
                if response.status == "cancelled":
                    response.status, response.incomplete_details = "incomplete", IncompleteDetails("too_much_kept")
                _delivery().also.append(partial(self._finish, response))
                raise ClientLeftError
            await self._end(send, events, outcome)

    async def _started(self, send: Send) -> Generation | None:
        """Return the generation once its first token is there; None when there is none, and that is told."""
        asked = self._asked
        intent = msgspec.structs.replace(asked.intent, stream=True)  # for its readers, whoever began it
        starting = start_generation(self._runtime, asked.principal, intent, asked.identifier)
        self._starting = asyncio.ensure_future(starting)
        if self._is_cancelled:
            self._starting.cancel()
        try:
            return await self._starting
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            self._response.incomplete_details = IncompleteDetails("cancelled")
            await self._unmade(send, "cancelled")
        except Exception as error:  # told as the response's own: whoever asked for it may be gone
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("unhandled", path="/v1/responses")
                refusal = internal_error()
            self._response.error = ResponseFault(refusal.code, refusal.message)
            await self._unmade(send, "failed")
        return None

    async def _unmade(self, send: Send, status: Status) -> None:
        self._response.status = status
        await self._update(self._response)
        await _write(send, [only_end(status, self._response)], more=False)

    async def _end(self, send: Send, events: ResponseEvents, outcome: Outcome) -> None:
        last = list(events.closing(outcome))
        response = events.ended(outcome)
        delivery = _delivery()
        if delivery.is_failed:
            await self._update(response)
        else:
            delivery.also.append(partial(self._finish, response))  # with the events, before anything is charged
        await _write(send, last, more=False)

    async def _update(self, response: Response) -> None:
        await self._runtime.own_threads.run(partial(self._finish, response))

    def _finish(self, response: Response) -> None:
        rows.change(self._asked.identifier, status=response.status, body=encode(response))


def _delivery() -> Delivery:
    delivery = delivering.get()
    assert delivery is not None, "a response in the background is kept"
    return delivery


async def attached(runtime: Runtime, claim: Claim, scope: Scope) -> Answer | None:
    """Return the events of a response that is made, or was, to read from any on; None where there are none."""
    if not await runtime.threads.run(lambda: answers.is_known(claim), owner=claim.tenant):
        return None
    return await runtime.replays.answer(DurableRequest(claim, uuid7(), _lost, scope, b"", grace=None))


async def _lost(scope: Scope, receive: Receive, send: Send) -> None:
    """Run in the place of a response whose events are lost in the moment in which somebody asks for them."""
    raise answer_lost()


async def cancelled(runtime: Runtime, owner: Owner, identifier: UUID) -> None:
    """Have a response in the background end, and wait a while for that, wherever it is made."""
    run, claim = runtime.requests.background.get(identifier), claim_of(owner, identifier)
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            if run is not None:
                run.cancel()
                await run.ended()
                return
            while await runtime.threads.run(lambda: rows.is_running(owner, identifier), owner=owner.tenant):
                ask = partial(answers.ask_to_cancel, claim)
                await runtime.threads.run(ask, owner=owner.tenant)  # again: it may only just begin
                await asyncio.sleep(LOOK_SECONDS)


async def cancelled_unstored(runtime: Runtime, owner: Owner, identifier: UUID, scope: Scope) -> bytes | None:
    """Have a response of a websocket that isn't stored, or not yet, end wherever it is made; return its last event as
    JSON, None where there is no such response.
    """
    claim = claim_of(owner, identifier)
    await runtime.threads.run(lambda: answers.ask_to_cancel(claim), owner=owner.tenant)
    answer = await attached(runtime, claim, scope)
    if answer is None:
        return None
    async with answer.reading() as event_log:
        return data_of(events_of(await event_log.whole())[-1])


async def cancel_as_asked(runtime: Runtime) -> None:
    """Cancel those of this process' responses whose end was asked for elsewhere."""
    if not len(runtime.replays):
        return
    for identifier in await runtime.own_threads.run(lambda: answers.to_cancel(runtime.requests.incarnation)):
        if (run := runtime.requests.background.get(identifier)) is not None:
            run.cancel()
        elif (generation := runtime.requests.live.get(identifier)) is not None:  # else it is asked for until it began
            generation.cancel(None)


async def _write(send: Send, events: Iterable[Event], *, more: bool = True) -> None:
    data = b"".join(event(encode(told), told["type"]) for told in events)
    await send({"type": "http.response.body", "body": data, "more_body": more})
