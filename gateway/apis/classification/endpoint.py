"""``POST /v1/classify``: the labels of texts, by a model that says how probable each is."""

from __future__ import annotations

import struct

from base.http.asgi import Receive, Scope, Send, header_of
from base.http.disconnect import watching
from gateway.apis.classification.wire import Classified, ClassifyAnswer, ClassifyRequest
from gateway.apis.shared.answer import answer_whole
from gateway.durable.outcome import Outcome
from gateway.generation.generation import Generation, start_generation
from gateway.http.access import note_model, principal_of
from gateway.http.request import read_body, request_id_of, require_method, runtime_of
from gateway.wire.common import TASK_HEADER
from gateway.wire.decode import decode
from gateway.wire.usage import embedding_usage
from inference.types import Delta, Vector


async def classify(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the label of each input."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(ClassifyRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    intent = request.intent(header_of(scope, TASK_HEADER))
    async with watching(scope, receive) as client:
        generation = await start_generation(runtime_of(scope), principal, intent, request_id_of(scope))
        await answer_whole(generation, ClassifyFormat(generation), client, send)


class ClassifyFormat:
    """A generation's probabilities in the format of vLLM's classify; never streamed."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._vectors: dict[int, Vector] = {}

    def collect(self, event: Delta | Vector) -> None:
        """Take the probabilities of a text's labels."""
        if isinstance(event, Vector):
            self._vectors[event.index] = event

    def whole(self, outcome: Outcome) -> ClassifyAnswer:
        """All labels, in the order of the texts."""
        vectors = [vector for _, vector in sorted(self._vectors.items())]
        return ClassifyAnswer(
            id=f"classify-{self._generation.id.hex}",
            created=self._generation.created,
            model=self._generation.route.model,
            labels=list(vectors[0].labels),
            data=[_classified(vector) for vector in vectors],
            usage=embedding_usage(outcome.usage, outcome.charge),
        )


def _classified(vector: Vector) -> Classified:
    probabilities = list(struct.unpack(f"<{len(vector.labels)}f", vector.data))
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return Classified(vector.index, vector.labels[best], probabilities, len(probabilities))
