"""``POST /v1/classify``: the labels of texts, by a model that says how probable each is."""

from __future__ import annotations

import struct

from gateway.apis.classification.wire import Classified, ClassifyAnswer, ClassifyRequest
from gateway.apis.shared.answer import generate
from gateway.durable.delivery import Outcome
from gateway.generation.generation import Generation
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.usage import embedding_usage
from inference.types import Delta, Vector


@endpoint(
    "POST",
    "/v1/classify",
    scope="classification",
    summary="Classify texts",
    takes=ClassifyRequest,
    gives=ClassifyAnswer,
    work=Work.GENERATES,
    example={"model": "auto", "input": ["Where is my parcel?"], "labels": ["delivery", "billing"]},
)
async def classify(call: Call[ClassifyRequest]) -> None:
    """Answers with the most probable label of each text, and how probable each is: of labels that the request names,
    where the model compares texts with any, or of the model's own.
    """
    await generate(call, call.request.intent(call.task_header), ClassifyFormat)


class ClassifyFormat:
    """A generation's probabilities in the format of vLLM's classify; never streamed."""

    def __init__(self, generation: Generation, request: ClassifyRequest) -> None:
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
