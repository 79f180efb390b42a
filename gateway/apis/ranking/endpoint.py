"""``POST /v1/rerank`` and ``POST /v1/score``: by models that read both texts at once, or by the angle of embeddings."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import UNSET

from gateway.apis.ranking.wire import (
    RankedDocument,
    RerankAnswer,
    RerankDocument,
    RerankRequest,
    ScoreAnswer,
    ScoredPair,
    ScoreRequest,
)
from gateway.apis.shared.answer import WholeFormat, generate
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal
from gateway.generation.generation import Generation
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.usage import embedding_usage
from inference.types import Delta, Kind, Vector
from routing.catalogue import ModelEntry
from routing.tasks import is_automatic

R = TypeVar("R", RerankRequest, ScoreRequest)


@endpoint(
    "POST",
    "/v1/rerank",
    scope="ranking",
    summary="Rank documents by a query",
    takes=RerankRequest,
    gives=RerankAnswer,
    work=Work.GENERATES,
    example={"model": "auto", "query": "Which one is a fruit?", "documents": ["A stone", "An apple"], "top_n": 1},
)
async def rerank(call: Call[RerankRequest]) -> None:
    """Answers with the documents, the most relevant first, by a model that reads query and document at once, or by the
    angle between their embeddings.
    """
    await _score(call, RerankFormat, "documents")


@endpoint(
    "POST",
    "/v1/score",
    scope="ranking",
    summary="Score pairs of texts",
    takes=ScoreRequest,
    gives=ScoreAnswer,
    work=Work.GENERATES,
    example={"model": "auto", "text_1": "A fruit", "text_2": ["A stone", "An apple"]},
)
async def score(call: Call[ScoreRequest]) -> None:
    """Answers with one number for each pair: how well the second text matches the first."""
    await _score(call, ScoreFormat, "text_2")


async def _score(call: Call[R], told: Callable[[Generation, R], WholeFormat], inputs: str) -> None:
    """Answer a request whose field of texts is called `inputs`."""
    catalogue = (await call.runtime.catalogue.current()).catalogue
    kind = _kind_of(catalogue.named(call.request.model), catalogue.models)
    try:
        await generate(call, call.request.intent(kind, call.task_header), told)
    except Refusal as refusal:
        refusal.param = inputs if refusal.param == "input" else refusal.param
        raise


def _kind_of(name: str, models: Mapping[str, ModelEntry]) -> Kind:
    """Return what is asked of the model `name`: scores, or vectors of one that makes embeddings and scores no pairs.

    Where nothing is installed that scores pairs, `auto` compares embeddings too.
    """
    found = [models[name]] if name in models else list(models.values()) if is_automatic(name) else []
    kinds = {kind for model in found for kind in model.kinds}
    return Kind.EMBEDDING if Kind.EMBEDDING in kinds and Kind.SCORE not in kinds else Kind.SCORE


class _Scores:
    """Collects the scores of a generation's pairs, or the vectors of the request's texts and, behind them, queries."""

    def __init__(self, generation: Generation, request: RerankRequest | ScoreRequest) -> None:
        self._generation = generation
        self._count = len(request.texts)
        self._vectors: dict[int, tuple[float, ...]] = {}

    def collect(self, event: Delta | Vector) -> None:
        """Take a score or vector."""
        if isinstance(event, Vector):
            self._vectors[event.index] = struct.unpack(f"<{len(event.data) // 4}f", event.data)

    def _scores(self) -> list[float]:
        """Return the scores in the order of the pairs."""
        vectors = [vector for _, vector in sorted(self._vectors.items())]
        if self._generation.intent.kind is Kind.SCORE:
            return [vector[0] for vector in vectors]
        texts, queries = vectors[: self._count], vectors[self._count :]
        return [
            _cosine(query, text) for query, text in zip(queries * (self._count // len(queries)), texts, strict=True)
        ]


class RerankFormat(_Scores):
    """Scores in the format of Rerank; never streamed."""

    def __init__(self, generation: Generation, request: RerankRequest) -> None:
        super().__init__(generation, request)
        self._request = request

    def whole(self, outcome: Outcome) -> RerankAnswer:
        """The documents, the most relevant first; of equal ones the one that was sent first."""
        scores, texts = self._scores(), self._request.texts
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._request.top_n]
        shown = self._request.return_documents is not False
        return RerankAnswer(
            id=f"rerank-{self._generation.id.hex}",
            model=self._generation.route.model,
            results=[
                RankedDocument(index, scores[index], RerankDocument(texts[index]) if shown else UNSET)
                for index in order
            ],
            usage=embedding_usage(outcome.usage, outcome.charge),
        )


class ScoreFormat(_Scores):
    """Scores in the format of vLLM's score; never streamed."""

    def whole(self, outcome: Outcome) -> ScoreAnswer:
        """All scores, in the order of the pairs."""
        return ScoreAnswer(
            id=f"score-{self._generation.id.hex}",
            created=self._generation.created,
            model=self._generation.route.model,
            data=[ScoredPair(index, score) for index, score in enumerate(self._scores())],
            usage=embedding_usage(outcome.usage, outcome.charge),
        )


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the cosine of the angle between two vectors, 0 where one has no direction.

    By the distance between them, since that is computed at once: a product element by element takes ten times as long.
    """
    lengths = math.hypot(*one), math.hypot(*other)
    if not all(lengths):
        return 0.0
    distance = math.dist(one, other)
    cosine = (lengths[0] ** 2 + lengths[1] ** 2 - distance**2) / (2 * lengths[0] * lengths[1])
    return max(-1.0, min(1.0, cosine))
