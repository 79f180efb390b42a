"""``POST /v1/responses``, whole or as a stream of events."""

from __future__ import annotations

from contextlib import aclosing

from gateway.edge.access import principal_of
from gateway.edge.answer import answer_headers, credit_headers, failure_of, opened
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
    send_json,
)
from gateway.edge.response_events import ResponseEvents
from gateway.edge.sse import EventStream, event
from gateway.edge.wire.decode import decode, unsupported
from gateway.edge.wire.responses import ResponseRequest
from gateway.generation.events import Outcome
from gateway.generation.generation import Generation, start_generation
from inference.types import Delta


async def responses(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one response."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(ResponseRequest, await read_body(scope, receive, principal.tenant))
    if request.previous_response_id is not None:
        raise unsupported("previous_response_id", "responses aren't stored; a websocket continues its own")
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "it is only allowed when 'stream' is true")
    intent = request.intent(request.turns(), task_header=header_of(scope, b"x-sluice-task"))
    generation = await start_generation(runtime_of(scope), principal, intent, request_id_of(scope))
    told = ResponseEvents(request, generation)
    async with watching(receive, generation.client_left) as client:
        if request.stream:
            await _stream(generation, told, client, send)
        else:
            await _answer(generation, told, client, send)


async def _answer(generation: Generation, told: ResponseEvents, client: watching, send: Send) -> None:
    async with aclosing(generation.events()) as events:
        async for item in events:
            match item:
                case Delta(text=text):
                    told.add(text)
                case Outcome():
                    outcome = item
    await client.stop()
    failure = failure_of(outcome)
    if failure is not None:
        raise failure
    await send_json(send, 200, told.end(outcome), {**answer_headers(generation), **credit_headers(outcome)})


async def _stream(generation: Generation, told: ResponseEvents, client: watching, send: Send) -> None:
    async with (
        aclosing(await opened(generation)) as events,
        EventStream(send, answer_headers(generation)) as stream,
    ):
        await stream.write(b"".join(event(encode(item), item["type"]) for item in told.opening()))
        async for item in events:
            match item:
                case Delta(text=text) if text:
                    told_item = told.delta(text)
                    await stream.write(event(encode(told_item), told_item["type"]))
                case Outcome():
                    await client.stop()
                    await stream.finish(
                        b"".join(event(encode(told_item), told_item["type"]) for told_item in told.closing(item))
                    )
