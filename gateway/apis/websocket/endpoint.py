"""Responses over a websocket: the protocol that SDKs and our own chat page speak."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import structlog
from channels.consumer import AsyncConsumer
from channels.exceptions import StopConsumer
from django.conf import settings

from base.http import ClientLeftError, Receive, Scope, Send, watching
from base.ids import moment_of, request_id_in, uuid7
from gateway.apis.responses.conversation import Earlier, owner_of, turns_before, with_items
from gateway.apis.responses.events import Event, ResponseEvents, unanswered
from gateway.apis.responses.input_items import gone_on_with
from gateway.apis.responses.response_object import Response, begun
from gateway.apis.responses.runs import attached, claim_of
from gateway.apis.responses.storing import StoredAnswer, Storing, forbidden, is_stored
from gateway.apis.responses.wire import ClientEvent, ResponseCancel, ResponseCreate, ResponseResume
from gateway.apis.shared.answer import Answering, failure_of, relay
from gateway.apis.websocket.streams import (
    MOST_STREAMS,
    EventSender,
    History,
    Request,
    Stream,
    Streams,
    crowded,
    kept_writer,
    message_of,
)
from gateway.concurrency import Cap
from gateway.durable import answers
from gateway.durable.delivery import Outcome
from gateway.durable.replays import Answer, DurableRequest
from gateway.errors.faults import draining, refusal_of
from gateway.errors.refusal import Refusal, internal_error
from gateway.generation.counting import count
from gateway.generation.generation import start_generation
from gateway.generation.intent import Intent
from gateway.http.access import note_refusal
from gateway.http.callers import PROJECT_FIELD, Caller, caller_of
from gateway.http.durable import check_resumable, take_request
from gateway.http.request import runtime_of
from gateway.logs import request_bound
from gateway.runtime import tracing
from gateway.runtime.principals import Principal
from gateway.runtime.refusals import Sender
from gateway.runtime.requests import Stage
from gateway.wire.decode import decode, unsupported
from inference.messages import Message
from inference.types import Delta
from tenancy.models import Tenant

IDLE_SECONDS = 15 * 60.0
LIFETIME_SECONDS = 60 * 60.0
PAUSE_SECONDS = 0.025  # between two deltas: text that comes meanwhile is joined
USAGE_SECONDS = 0.2  # between two usage events
MOST_SOCKETS = 256  # of one tenant or user in this process: idle ones cost memory too
MOST_CANCELS = MOST_STREAMS  # of responses made elsewhere, on their way to the database at once

GOING_AWAY = 1001
SERVICE_RESTART = 1012  # come again: another gateway serves, or this one soon
TOO_BIG = 1009

NO_EVENT = ClientEvent("")

log = structlog.get_logger(__name__)


class _Asked(NamedTuple):
    """A request that can be answered, and what is stored of it."""

    request: ResponseCreate
    request_id: UUID
    principal: Principal
    intent: Intent
    storing: Storing | None


def not_resumable(shown: str) -> Refusal:
    """The 404 for a response that can't be gone on with."""
    text = f"'{shown[:100]}' can't be gone on with: it wasn't 'resumable', ended over 24 hours ago, or isn't yours."
    return Refusal(404, "response_not_found", text, param="response_id")


def not_running(cancel: ResponseCancel) -> Refusal:
    """The 400 for a cancel of nothing."""
    where = "in this stream" if cancel.response_id is None else "under this id"
    return Refusal(400, "response_not_running", f"No response runs {where} that could be cancelled.")


def too_many_sockets() -> Refusal:
    """The 429 for a caller who has as many websockets open as they may."""
    return Refusal(429, "too_many_connections", f"{MOST_SOCKETS} of your websockets are open already.")


def _too_old() -> Refusal:
    minutes = round(LIFETIME_SECONDS / 60)
    text = f"A connection lasts {minutes} minutes: open a new one."
    return Refusal(400, "websocket_connection_limit_reached", text)


class ResponsesConsumer(AsyncConsumer):  # type: ignore[misc]  # channels is untyped
    """One websocket on ``/v1/responses``. Generations run beside the receive loop, so that a cancel is received."""

    def __init__(self, sockets: Cap[UUID]) -> None:
        super().__init__()
        self._sockets = sockets
        self._ending = ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the socket; when it ends, running responses are stopped; they settle by themselves."""
        with self._ending:
            await super().__call__(scope, receive, send)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        """Accept the socket of an authenticated caller; a Refusal answers the handshake with its status and body."""
        self._runtime = runtime_of(self.scope)
        self._caller: Caller = await caller_of(self.scope)
        self._sockets.take(self._caller.owner)
        self._ending.callback(self._sockets.give_back, self._caller.owner)
        self._runtime.metrics.websockets.inc()
        self._ending.callback(self._runtime.metrics.websockets.dec)
        self._sender = EventSender(self.send)
        self._ending.callback(self._sender.shut)
        self._streams = Streams(self._runtime, self._respond)
        self._ending.callback(self._streams.close)
        self._history = History()
        self._cancelling: set[tuple[UUID, str]] = set()  # by response and project
        self._quiet_since = self._opened_at = asyncio.get_running_loop().time()
        await self.send({"type": "websocket.accept"})
        self._clock = asyncio.create_task(self._watch_clock())
        self._ending.callback(self._clock.cancel)
        self._runtime.requests.on_leave.add(self._leave)
        self._ending.callback(self._runtime.requests.on_leave.discard, self._leave)
        if self._runtime.requests.stage is not Stage.SERVING:
            self._leave()

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """Take one client event; one that is wrong is answered with an error event."""
        self._quiet_since = asyncio.get_running_loop().time()
        frame = message.get("bytes") or (message.get("text") or "").encode()
        if len(frame) > settings.SLUICE_MAX_FRAME_BYTES:
            text = f"A message is larger than {settings.SLUICE_MAX_FRAME_BYTES:,} bytes."
            await self._refuse_event(Refusal(413, "request_too_large", text), NO_EVENT)
            await self._sender.close(TOO_BIG)
            return
        event = NO_EVENT
        try:
            event = decode(ClientEvent, frame)
            self._take(event, frame)
        except Refusal as refusal:
            await self._refuse_event(refusal, event)

    def _take(self, event: ClientEvent, frame: bytes) -> None:
        match event.type:
            case "response.create":
                if self._runtime.requests.stage is not Stage.SERVING:
                    raise draining()
                self._require_young()
                self._streams.create(decode(ResponseCreate, frame), len(frame))
            case "response.resume":
                self._require_young()
                self._streams.create(decode(ResponseResume, frame), len(frame))
            case "response.cancel":
                cancel = decode(ResponseCancel, frame)
                stream = self._streams.cancel(cancel.stream_id, cancel.response_id)
                made_elsewhere = cancel.response_id if stream is None else stream.made_elsewhere
                if stream is None and request_id_in(made_elsewhere or "") is None:
                    raise not_running(cancel)
                if made_elsewhere:
                    self._begin_to_cancel(made_elsewhere, cancel, {} if stream is None else stream.metadata)
            case other:
                raise unsupported("type", f"there is no client event '{other}'")

    def _begin_to_cancel(self, shown: str, cancel: ResponseCancel, metadata: Mapping[str, str]) -> None:
        """Have a response end that this process isn't known to make, beside this socket; a Refusal (429) where as many
        as may are being ended already. One that is needs nothing more.
        """
        identifier = request_id_in(shown)
        if identifier is None:
            return
        whose = identifier, metadata.get(PROJECT_FIELD, "")
        if whose in self._cancelling:
            return
        if len(self._cancelling) >= MOST_CANCELS:
            raise crowded(f"{MOST_CANCELS} responses are being cancelled over this connection already.")
        self._cancelling.add(whose)
        task = self._runtime.requests.supervise(self._cancel_elsewhere(identifier, cancel, metadata))
        task.add_done_callback(lambda _: self._cancelling.discard(whose))

    async def _cancel_elsewhere(self, identifier: UUID, cancel: ResponseCancel, metadata: Mapping[str, str]) -> None:
        """Have a response end that goes on without its socket, by whichever process makes it."""
        try:
            principal = await self._caller.principal(metadata)
            claim = claim_of(owner_of(principal), identifier, principal.user)
            await self._runtime.threads.run(partial(answers.ask_to_cancel, claim), owner=claim.tenant)
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("unhandled", path=self.scope["path"])
                refusal = internal_error()
            await self._sender.refuse(
                refusal, self.scope["request_id"], stream_id=cancel.stream_id, event_id=cancel.event_id
            )

    async def _refuse(self, refusal: Refusal) -> None:
        await self._sender.refuse(refusal, self.scope["request_id"])

    async def _refuse_event(self, refusal: Refusal, event: ClientEvent) -> None:
        """Answer an event that was refused: it is a request of its own, with an id."""
        exchange, request_id = self.scope["exchange"], uuid7()
        note_refusal(self._runtime, refusal, request_id, exchange.sender, endpoint=exchange.route.name)
        await self._sender.refuse(refusal, request_id, stream_id=event.stream_id, event_id=event.event_id)

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        """End the consumer."""
        raise StopConsumer

    # -- one response -------------------------------------------------------------------------------------------------

    async def _respond(self, stream: Stream, request: Request) -> None:
        """Generate one response, or go on with one, and send its events on its stream; any error is sent as an error
        event.
        """
        request_id = uuid7()
        principal: Principal | None = None
        with tracing.span("response", {"sluice.request_id": str(request_id)}), request_bound(str(request_id)):
            try:
                principal = await self._caller.principal(request.metadata or {})
                if isinstance(request, ResponseResume):
                    await self._resume(stream, request, principal)
                    return
                asked = await self._asked(request, request_id, principal)
                if request.generate is False:
                    await self._take_in(stream, asked)
                elif request.resumable:
                    await self._generate_kept(stream, asked)
                else:
                    await self._generate(stream, asked, partial(self._send_all, stream_id=stream.stream_id))
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None:
                    log.exception("unhandled", path=self.scope["path"])
                    stream.stop()
                    refusal = internal_error()
                self._note(refusal, request_id, principal, request)
                await self._sender.refuse(refusal, request_id, stream_id=stream.stream_id, event_id=request.event_id)

    async def _asked(self, request: ResponseCreate, request_id: UUID, principal: Principal) -> _Asked:
        """The parsed `request`, after the turns that it goes on from: held by this socket, else stored."""
        threads, owner = self._runtime.threads, owner_of(principal)
        stores, previous = is_stored(principal, request.store), request.previous_response_id
        own = None if previous is None else self._history.turns_of(previous, principal.project)
        earlier = Earlier(own or ())
        if previous is not None and own is None:
            earlier = await turns_before(threads, owner, previous)
        request.input = await with_items(threads, owner, request.input)
        storing = Storing(principal, request_id, request.input, previous=previous, unstored=own or ())
        intent = request.intent(
            earlier.messages, earlier_model=earlier.model, leaves_out_hosted=principal.leaves_out_hosted
        )
        return _Asked(request, request_id, principal, intent, storing if stores else None)

    async def _generate(
        self, stream: Stream, asked: _Asked, send: Callable[..., Awaitable[None]], client: watching | None = None
    ) -> None:
        """Generate the response and `send` its events; a `client` that leaves stops it."""
        request, principal = asked.request, asked.principal
        generation = await start_generation(self._runtime, principal, asked.intent, asked.request_id)
        stream.began(generation)
        if client is not None:
            client.stops(generation.client_left)
        stores = asked.storing is not None
        told = ResponseEvents(request, generation, with_account=self._caller.wants_account, is_stored=stores)
        answering: Answering = generation
        if asked.storing is not None:
            answering = StoredAnswer(generation, told, asked.storing, self._runtime.threads)
        outcome = await self._tell(answering, told, send)
        if client is not None:
            client.stop()
            if client.left:
                raise ClientLeftError
        if outcome.error is None:
            self._keep(asked, told.ended(outcome), told.answer.message)
        elif (failure := failure_of(outcome)) is not None:
            self._note(failure, asked.request_id, principal, request)
        await send(told.closing(outcome), is_last=True)

    async def _generate_kept(self, stream: Stream, asked: _Asked) -> None:
        """Generate the response into a log, beside this socket, and send what stands there."""
        principal = asked.principal
        if principal.response_storage == Tenant.Storage.FORBIDDEN:
            raise forbidden("resumable")
        stream.is_kept = True

        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            async with watching(scope, receive) as client:
                await self._generate(stream, asked, kept_writer(send), client)

        claim = claim_of(owner_of(principal), asked.request_id, principal.user)
        await self._runtime.replays.require_room(claim)
        answer = await self._runtime.replays.answer(
            DurableRequest(claim, asked.request_id, endpoint, self.scope, b"", grace=principal.resume_s)
        )
        await self._read(stream, answer, None)

    async def _resume(self, stream: Stream, request: ResponseResume, principal: Principal) -> None:
        """Send the events of a response that goes on without its socket, or went on."""
        stream.is_kept = True
        identifier = request_id_in(request.response_id)
        answer = None
        if identifier is not None:
            claim = claim_of(owner_of(principal), identifier, principal.user)
            answer = await attached(self._runtime, claim, self.scope)
        if identifier is None or answer is None:
            raise not_resumable(request.response_id)
        await take_request(self._runtime, principal)
        if (generation := self._runtime.requests.live.get(identifier)) is not None:
            stream.began(generation)
        await self._read(stream, answer, request.starting_after)

    async def _read(self, stream: Stream, answer: Answer, after: int | None) -> None:
        async with answer.reading() as event_log:
            await event_log.begun()
            await check_resumable(event_log, after)
            async with aclosing(event_log.read(after)) as batches:
                async for batch in batches:
                    for told in batch.events:
                        await self._sender.send_encoded(message_of(told), stream.stream_id)

    async def _take_in(self, stream: Stream, asked: _Asked) -> None:
        """Answer a request that is only to be gone on from. It is routed and tokenised, so that what is wrong with it
        is told now; nothing runs or is charged.
        """
        counted = await count(self._runtime, asked.principal, asked.intent, asked.request_id)
        response = begun(
            asked.request,
            identifier=f"resp_{asked.request_id.hex}",
            created=int(moment_of(asked.request_id).timestamp()),
            model=counted.model,
            is_stored=asked.storing is not None,
            not_enforced=asked.intent.not_enforced,
        )
        events = list(unanswered(response))
        if asked.storing is not None:
            await asked.storing.end(response, self._runtime.threads)
        self._keep(asked, response)
        await self._send_all(events, stream.stream_id)

    def _keep(self, asked: _Asked, response: Response, *answer: Message) -> None:
        """Remember the conversation, unless it is stored: then it is read from there, since it may be deleted."""
        if not response.store:
            turns = asked.request.without_instructions(asked.intent)
            if answer and asked.intent.continues:
                turns = (*turns[:-1], gone_on_with(turns[-1], *answer))
            else:
                turns = (*turns, *answer)
            self._history.keep(response.id, asked.principal.project, turns)

    def _note(self, refusal: Refusal, request_id: UUID, principal: Principal | None, request: Request) -> None:
        sender = None
        if principal is not None:
            sender = Sender(principal.tenant, principal.project, principal.api_key, principal.user)
        asked = request.model if isinstance(request, ResponseCreate) else ""
        endpoint = self.scope["exchange"].route.name
        note_refusal(self._runtime, refusal, request_id, sender, endpoint=endpoint, asked=asked)

    async def _tell(
        self, generation: Answering, told: ResponseEvents, write: Callable[..., Awaitable[None]]
    ) -> Outcome:
        """Send the events of the response up to its last delta, joining deltas within `PAUSE_SECONDS` into one."""
        loop = asyncio.get_running_loop()
        counted_at = float("-inf")

        def tell(delta: Delta) -> list[Event]:
            nonlocal counted_at
            told_now = told.delta(delta)
            if told_now and self._caller.wants_account and loop.time() - counted_at >= USAGE_SECONDS:
                counted_at = loop.time()
                told_now.append(told.usage(delta.usage))
            return told_now

        async def send(told_now: list[Event]) -> None:
            await write(told_now)
            await asyncio.sleep(PAUSE_SECONDS)  # what comes meanwhile is joined into one delta

        await write(told.opening())
        async with aclosing(generation.events()) as events:
            return await relay(events, tell, send)

    async def _send_all(self, events: Iterable[Event], stream_id: str | None, *, is_last: bool = False) -> None:
        for event in events:
            await self._sender.send(event, stream_id)

    # -- the end of an idle or old socket, and of the gateway ---------------------------------------------------------

    def _leave(self) -> None:
        """Take no more responses, and tell the client to connect again once those that run have ended."""
        leaving = asyncio.create_task(self._say_goodbye())
        self._ending.callback(leaving.cancel)

    async def _say_goodbye(self) -> None:
        await self._streams.idle()
        await self._refuse(draining())
        await self._sender.close(SERVICE_RESTART)

    def _require_young(self) -> None:
        """Raise the Refusal for a response that would begin once the socket has been open for too long."""
        if asyncio.get_running_loop().time() >= self._opened_at + LIFETIME_SECONDS:
            raise _too_old()

    async def _watch_clock(self) -> None:
        """Close the socket once it has been silent or open for too long, but never in the middle of a response."""
        loop = asyncio.get_running_loop()
        oldest = self._opened_at + LIFETIME_SECONDS
        while (left := min(self._quiet_since + IDLE_SECONDS, oldest) - loop.time()) > 0 or not self._streams.is_idle:
            await asyncio.sleep(left)
            if not self._streams.is_idle:
                await self._streams.idle()
                self._quiet_since = loop.time()
        if loop.time() >= oldest:
            await self._refuse(_too_old())
        await self._sender.close(GOING_AWAY)
