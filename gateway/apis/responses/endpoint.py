"""``POST /v1/responses``, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from base.http import encode, event, send_bytes, watching
from base.ids import moment_of, uuid7
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import Earlier, owner_of, turns_before, with_items
from gateway.apis.responses.events import Event, ResponseEvents
from gateway.apis.responses.response_object import Response, begun
from gateway.apis.responses.runs import Asked, BackgroundRun, claim_of
from gateway.apis.responses.stored_endpoint import InputTokens
from gateway.apis.responses.storing import StoredAnswer, Storing, is_stored
from gateway.apis.responses.wire import InputTokensRequest, ResponseRequest
from gateway.apis.shared.answer import QUESTION, Answering, answer, answer_count
from gateway.apis.shared.quote import quoting
from gateway.durable.delivery import Outcome, delivering
from gateway.generation.generation import start_generation
from gateway.generation.intent import Intent
from gateway.http.callers import asker_of
from gateway.http.durable import write_answer
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.decode import invalid, unsupported
from inference.types import Delta, Vector


@endpoint(
    "POST",
    "/v1/responses",
    scope="responses.write",
    summary="Create a response",
    takes=ResponseRequest,
    gives=Response,
    streams=Response,
    work=Work.GENERATES,
    example={"model": "auto", "input": QUESTION, "max_output_tokens": 64},
)
async def responses(call: Call[ResponseRequest]) -> None:
    """Answers a conversation; with `stream` in events, the last of which has the whole response. The same path is a
    websocket. With `store` it is kept, so that it can be read and continued.
    """
    request, principal, delivery = call.request, call.principal, delivering.get()
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "it is only allowed when 'stream' is true")
    stores = is_stored(principal, request.store)
    if request.background and not stores:
        raise invalid("background", "A response in the background is stored: send 'store': true with it.")
    intent = await _intent(call, request)
    # Under a key the answer to the request is one run, and a response in the background another.
    identifier = uuid7() if request.background and delivery is not None else call.id
    storing = Storing(principal, identifier, request.input, previous=request.previous_response_id)
    if request.background:
        await _in_background(call, Asked(request, identifier, principal, intent, storing))
        return
    async with watching(call.scope, call.receive) as client:
        generation = await start_generation(call.runtime, principal, intent, identifier)
        events = ResponseEvents(request, generation, is_stored=stores)
        answering: Answering = generation
        if stores:
            answering = StoredAnswer(generation, events, storing, call.runtime.threads)
        await answer(answering, ResponseFormat(events), client, call.send, stream=intent.stream)


@endpoint(
    "POST",
    "/v1/responses/input_tokens",
    scope="responses.write",
    summary="Count a response's input",
    takes=InputTokensRequest,
    gives=InputTokens,
    work=Work.COUNTS,
    example={"model": "auto", "input": QUESTION},
)
async def responses_input_tokens(call: Call[InputTokensRequest]) -> None:
    """How many tokens the input of a response has where it would run. Nothing runs or is charged."""
    await answer_count(call, await _intent(call, call.request.response()), InputTokens)


async def _in_background(call: Call[ResponseRequest], asked: Asked) -> None:
    """Begin a response that doesn't need its client, and answer with it as it is, or with its events."""
    runtime = call.runtime
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
    await call.in_database(lambda: asked.storing.add(response, is_background=True))
    body = encode(response)
    if (delivery := delivering.get()) is not None:
        delivery.needs_reader = False
        delivery.also.append(partial(rows.tell_of, delivery.run, asked.identifier))
    answer = await BackgroundRun(runtime, asked, response).begin(call.scope)
    if not asked.request.stream:
        await send_bytes(call.send, 200, body, "application/json")
        return
    async with watching(call.scope, call.receive) as client:
        await write_answer(answer, call.scope, asked.principal, client, call.send)


async def _intent(call: Call[Any], request: ResponseRequest) -> Intent:
    """Return what the request asks for, after the stored turns and with the stored items that it names."""
    threads, owner, previous = call.runtime.threads, owner_of(call.principal), request.previous_response_id
    earlier = Earlier() if previous is None else await turns_before(threads, owner, previous)
    request.input = await with_items(threads, owner, request.input)
    return request.intent(
        earlier.messages,
        earlier_model=earlier.model,
        task_header=call.task_header,
        leaves_out_hosted=call.principal.leaves_out_hosted,
    )


async def _quoted_intent(call: Call[ResponseRequest]) -> Intent:
    return await _intent(call, call.request)


responses_quote = quoting(responses, _quoted_intent, caller=asker_of)


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
