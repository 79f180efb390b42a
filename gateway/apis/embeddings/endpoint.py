"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import math
import struct

from gateway.apis.embeddings.wire import EmbeddingAnswer, EmbeddingItem, EmbeddingRequest
from gateway.apis.shared.answer import generate
from gateway.apis.shared.quote import quoting
from gateway.durable.delivery import Outcome
from gateway.generation.generation import Generation
from gateway.generation.intent import Intent
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.usage import embedding_usage
from inference.types import Delta, Vector


@endpoint(
    "POST",
    "/v1/embeddings",
    scope="embeddings",
    summary="Create embeddings",
    takes=EmbeddingRequest,
    gives=EmbeddingAnswer,
    work=Work.GENERATES,
    example={"model": "auto", "input": ["A text", "Another one"]},
)
async def embeddings(call: Call[EmbeddingRequest]) -> None:
    """Answers with one vector for each input."""
    await generate(call, await _intent(call), EmbeddingFormat)


async def _intent(call: Call[EmbeddingRequest]) -> Intent:
    return call.request.intent(call.task_header)


embeddings_quote = quoting(embeddings, _intent)


class EmbeddingFormat:
    """A generation's vectors in the format of Embeddings; never streamed."""

    def __init__(self, generation: Generation, request: EmbeddingRequest) -> None:
        self._generation = generation
        self._as_text = request.encoding_format == "base64"
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
