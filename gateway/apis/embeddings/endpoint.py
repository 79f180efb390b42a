"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import math
import struct

from base.http.asgi import Receive, Scope, Send, header_of
from base.http.disconnect import watching
from gateway.apis.embeddings.wire import EmbeddingAnswer, EmbeddingItem, EmbeddingRequest
from gateway.apis.shared.answer import answer_whole
from gateway.durable.outcome import Outcome
from gateway.generation.generation import Generation, start_generation
from gateway.http.access import note_model, principal_of
from gateway.http.request import read_body, request_id_of, require_method, runtime_of
from gateway.wire.common import TASK_HEADER
from gateway.wire.decode import decode
from gateway.wire.usage import embedding_usage
from inference.types import Delta, Vector


async def embeddings(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with one vector for each input."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(EmbeddingRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    intent = request.intent(header_of(scope, TASK_HEADER))
    async with watching(scope, receive) as client:
        generation = await start_generation(runtime_of(scope), principal, intent, request_id_of(scope))
        told = EmbeddingFormat(generation, as_text=request.encoding_format == "base64")
        await answer_whole(generation, told, client, send)


class EmbeddingFormat:
    """A generation's vectors in the format of Embeddings; never streamed."""

    def __init__(self, generation: Generation, *, as_text: bool) -> None:
        self._generation = generation
        self._as_text = as_text
        self._vectors: dict[int, bytes] = {}

    def collect(self, event: Delta | Vector) -> None:
        """Take a vector."""
        if isinstance(event, Vector):
            self._vectors[event.index] = self._cut(event.data)

    def whole(self, outcome: Outcome) -> EmbeddingAnswer:
        """All vectors, in the order of the inputs."""
        return EmbeddingAnswer(
            data=[EmbeddingItem(index, self._shown(data)) for index, data in sorted(self._vectors.items())],
            model=self._generation.route.model,
            usage=embedding_usage(outcome.usage, outcome.charge),
        )

    def _shown(self, data: bytes) -> str | list[float]:
        if self._as_text:
            return base64.b64encode(data).decode()
        return list(_numbers(data))

    def _cut(self, data: bytes) -> bytes:
        """Return the vector with the dimensions that the client wants, where those are fewer, and one long again."""
        wanted = self._generation.intent.dimensions
        if wanted is None or 4 * wanted >= len(data):
            return data
        numbers = _numbers(data[: 4 * wanted])
        length = math.hypot(*numbers) or 1.0
        return struct.pack(f"<{wanted}f", *(number / length for number in numbers))


def _numbers(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // 4}f", data)
