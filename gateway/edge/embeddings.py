"""``POST /v1/embeddings``."""

from __future__ import annotations

import array
import base64
import sys
from contextlib import aclosing

from gateway.edge.access import principal_of
from gateway.edge.answer import answer_headers, credit_headers, failure_of
from gateway.edge.disconnect import watching
from gateway.edge.http import (
    Receive,
    Scope,
    Send,
    header_of,
    read_body,
    request_id_of,
    require_method,
    runtime_of,
    send_json,
)
from gateway.edge.wire.decode import decode
from gateway.edge.wire.embeddings import EmbeddingAnswer, EmbeddingItem, EmbeddingRequest
from gateway.edge.wire.usage import embedding_usage
from gateway.generation.events import Outcome
from gateway.generation.generation import start_generation
from gateway.runtime.runtime import Runtime
from inference.types import Vector


async def embeddings(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with one vector for each input."""
    require_method(scope, "POST")
    runtime = runtime_of(scope)
    principal = await principal_of(scope)
    request = decode(EmbeddingRequest, await read_body(scope, receive, principal.tenant))
    intent = request.intent(header_of(scope, b"x-sluice-task"))
    if request.dimensions is not None:
        request.require_width(await _width(runtime, request.model))
    generation = await start_generation(runtime, principal, intent, request_id_of(scope))
    vectors: dict[int, bytes] = {}
    async with watching(receive, generation.client_left) as client, aclosing(generation.events()) as events:
        async for item in events:
            match item:
                case Vector(index=index, data=data):
                    vectors[index] = data
                case Outcome():
                    outcome = item
        await client.stop()
    failure = failure_of(outcome)
    if failure is not None:
        raise failure
    as_text = request.encoding_format == "base64"
    answer = EmbeddingAnswer(
        data=[EmbeddingItem(index, _shown(data, as_text=as_text)) for index, data in sorted(vectors.items())],
        model=generation.route.model,
        usage=embedding_usage(outcome.usage, outcome.charge),
    )
    await send_json(send, 200, answer, {**answer_headers(generation), **credit_headers(outcome)})


async def _width(runtime: Runtime, model: str) -> int | None:
    """The width of `model`'s vectors, as a worker announced it."""
    snapshot = await runtime.current_snapshot()
    for deployment in snapshot.catalogue.deployments.get(model, ()):
        engine = runtime.engines.get(deployment.id)
        if engine is not None and engine.info is not None:
            return engine.info.vector_width or None
    return None


def _shown(data: bytes, *, as_text: bool) -> str | list[float]:
    if as_text:
        return base64.b64encode(data).decode()
    numbers = array.array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
