"""``POST /v1/responses``, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from base.http.asgi import Receive, Scope, Send, encode, header_of, send_bytes, send_json
from base.http.disconnect import watching
from base.http.sse import event
from base.ids import moment_of, uuid7
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import Earlier, owner_of, turns_before, with_items
from gateway.apis.responses.events import Event, ResponseEvents
from gateway.apis.responses.response_object import Response, begun
from gateway.apis.responses.runs import Asked, BackgroundRun, claim_of
from gateway.apis.responses.stored_wire import InputTokens
from gateway.apis.responses.storing import StoredAnswer, Storing, is_stored
from gateway.apis.responses.wire import InputTokensRequest, ResponseRequest
from gateway.apis.shared.answer import Answering, answer
from gateway.durable.delivery import delivering
from gateway.durable.outcome import Outcome
from gateway.generation.counting import count
from gateway.generation.generation import start_generation
from gateway.generation.intent import Intent
from gateway.http.access import note_model, principal_of
from gateway.http.kept import write_answer
from gateway.http.request import read_body, request_id_of, require_method, runtime_of
from gateway.runtime.principal import Principal
from gateway.wire.common import TASK_HEADER
from gateway.wire.decode import decode, invalid, unsupported
from gateway.wire.demands import not_enforced_header
from inference.types import Delta, Vector


async def responses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one response."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(ResponseRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "it is only allowed when 'stream' is true")
    runtime, stores, delivery = runtime_of(scope), is_stored(principal, request.store), delivering.get()
    if request.background and not stores:
        raise invalid("background", "A response in the background is stored: send 'store': true with it.")
    intent = await _intent(scope, principal, request)
    # Under a key the answer to the request is one run, and a response in the background another.
    is_apart = request.background and delivery is not None
    identifier = uuid7() if is_apart else request_id_of(scope)
    storing = Storing(principal, identifier, request.input, previous=request.previous_response_id)
    if request.background:
        await _in_background(scope, receive, send, Asked(request, identifier, principal, intent, storing))
        return
    async with watching(scope, receive) as client:
        generation = await start_generation(runtime, principal, intent, identifier)
        events = ResponseEvents(request, generation, is_stored=stores)
        answering: Answering = generation
        if stores:
            answering = StoredAnswer(generation, events, storing, runtime.threads)
        await answer(answering, ResponseFormat(events), client, send, stream=intent.stream)


async def input_tokens(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer how many tokens a response's input has; nothing runs or is charged."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(InputTokensRequest, await read_body(scope, receive, principal.tenant)).response()
    note_model(scope, request.model)
    runtime = runtime_of(scope)
    intent = await _intent(scope, principal, request)
    counted = await count(runtime, principal, intent, request_id_of(scope))
    headers = {**counted.headers, **not_enforced_header(intent.not_enforced)}
    await send_json(send, 200, InputTokens(counted.prepared.prompt_tokens), headers)


async def _in_background(scope: Scope, receive: Receive, send: Send, asked: Asked) -> None:
    """Begin a response that doesn't need its client, and answer with it as it is, or with its events."""
    runtime = runtime_of(scope)
    response = begun(
        asked.request,
        identifier=f"resp_{asked.identifier.hex}",
        created=int(moment_of(asked.identifier).timestamp()),
        model=asked.request.model,
        is_stored=True,
        in_background=True,
        not_enforced=asked.intent.not_enforced,
    )
    response.status = "queued"
    await runtime.replays.require_room(claim_of(owner_of(asked.principal), asked.identifier))
    await runtime.threads.run(lambda: asked.storing.add(response, is_background=True), owner=asked.principal.tenant)
    body = encode(response)
    if (delivery := delivering.get()) is not None:
        delivery.needs_reader = False
        delivery.also.append(partial(rows.tell_of, delivery.run, asked.identifier))
    answer = await BackgroundRun(runtime, asked, response).begin(scope)
    if not asked.request.stream:
        await send_bytes(send, 200, body, "application/json")
        return
    async with watching(scope, receive) as client:
        await write_answer(answer, scope, asked.principal, client, send)


async def _intent(scope: Scope, principal: Principal, request: ResponseRequest) -> Intent:
    """Return what the request asks for, after the stored turns and with the stored items that it names."""
    threads, owner, previous = runtime_of(scope).threads, owner_of(principal), request.previous_response_id
    earlier = Earlier() if previous is None else await turns_before(threads, owner, previous)
    request.input = await with_items(threads, owner, request.input)
    return request.intent(
        earlier.messages,
        earlier_model=earlier.model,
        task_header=header_of(scope, TASK_HEADER),
        leaves_out_hosted=principal.leaves_out_hosted,
    )


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
