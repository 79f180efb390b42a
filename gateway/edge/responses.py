"""``POST /v1/responses``, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.edge.access import note_model, principal_of
from gateway.edge.answer import Answering, answer
from gateway.edge.disconnect import watching
from gateway.edge.http import (
    Receive,
    Scope,
    Send,
    encode,
    header_of,
    read_body,
    request_id_of,
    require_method,
    runtime_of,
)
from gateway.edge.response_events import Event, ResponseEvents
from gateway.edge.sse import event
from gateway.edge.wire.common import TASK_HEADER
from gateway.edge.wire.decode import decode, unsupported
from gateway.edge.wire.response_object import Response
from gateway.edge.wire.responses import ResponseRequest
from gateway.generation.events import Outcome
from gateway.generation.generation import start_generation
from gateway.stored.conversation import owner_of, turns_before, with_items
from gateway.stored.items import refers
from gateway.stored.storing import StoredAnswer, Storing, is_stored
from inference.types import Delta, Vector


async def responses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one response."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    body = await read_body(scope, receive, principal.tenant)
    request = decode(ResponseRequest, body)
    note_model(scope, request.model)
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "it is only allowed when 'stream' is true")
    runtime, previous = runtime_of(scope), request.previous_response_id
    stores, owner = is_stored(principal, request.store), owner_of(principal)
    earlier = () if previous is None else await turns_before(runtime.threads, owner, previous)
    if refers(body):
        request.input = await with_items(runtime.threads, owner, request.input)
    intent = request.intent(earlier, task_header=header_of(scope, TASK_HEADER))
    async with watching(scope, receive) as client:
        generation = await start_generation(runtime, principal, intent, request_id_of(scope))
        events = ResponseEvents(request, generation, is_stored=stores)
        answering: Answering = generation
        if stores:
            storing = Storing(principal, generation.id, request.input, previous=previous)
            answering = StoredAnswer(generation, events, storing, runtime.threads)
        await answer(answering, ResponseFormat(events), client, send, stream=intent.stream)


class ResponseFormat:
    """A response's events as server-sent events, each under its name."""

    def __init__(self, events: ResponseEvents) -> None:
        self._events = events

    def opening(self) -> bytes:
        """Return the events that create the response."""
        return _written(self._events.opening())

    def delta(self, delta: Delta) -> bytes:
        """Return the events of a piece of the answer."""
        return _written(self._events.delta(delta))

    def closing(self, outcome: Outcome) -> bytes:
        """Return the events that end the last item and the response."""
        return _written(self._events.closing(outcome))

    def collect(self, event: Delta | Vector) -> None:
        """Take a piece of the answer."""
        if isinstance(event, Delta):
            self._events.collect(event)

    def whole(self, outcome: Outcome) -> Response:
        """Return the ended response as JSON."""
        return self._events.ended(outcome)


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(map(_one, events))


def _one(told: Event) -> bytes:
    return event(encode(told), told["type"])
