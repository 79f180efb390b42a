"""Rerank, in the shape that Jina, Cohere and vLLM share, and vLLM's score: requests and answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.generation.intent import Intent
from gateway.wire.common import (
    ModelName,
    Priority,
    ShortText,
    check_model,
    task_of,
)
from gateway.wire.decode import MAX_EMBEDDING_INPUTS, MAX_PAIRED_CHARACTERS, invalid
from gateway.wire.demands import Anything, Fields, Only
from gateway.wire.usage import EmbeddingUsage
from inference.types import Kind

Text = Annotated[str, Meta(min_length=1)]
TextList = Annotated[list[Text], Meta(min_length=1, max_length=MAX_EMBEDDING_INPUTS)]
Cut = Annotated[Literal[-1], Meta(description="-1 cuts what is longer than the model takes; else it is refused.")]


class RerankDocument(msgspec.Struct, forbid_unknown_fields=True):
    """A document as an object, and as it comes back."""

    text: Text


class _Ranking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: ModelName
    user: ShortText | None = None
    priority: Priority | None = None
    truncate_prompt_tokens: Cut | None = None

    def _intent(self, kind: Kind, queries: tuple[str, ...], texts: tuple[str, ...], task_header: str | None) -> Intent:
        """Return the scoring of `texts` by `queries`, one or as many, or for embeddings all of them behind each other,
        queries last.
        """
        Fields().check(self)
        check_model(self.model)
        is_score = kind is Kind.SCORE
        return Intent(
            endpoint="ranking",
            kind=kind,
            model=self.model,
            inputs=texts if is_score else (*texts, *queries),
            queries=queries if is_score else (),
            truncate=self.truncate_prompt_tokens is not None,
            task=task_of(None, task_header),
            end_user=self.user,
            priority=self.priority or 0,
        )


class RerankRequest(_Ranking, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/rerank``: how well each of `documents` answers `query`, the best `top_n` first."""

    query: Text
    documents: Annotated[list[Text | RerankDocument], Meta(min_length=1, max_length=MAX_EMBEDDING_INPUTS)]
    top_n: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    return_documents: bool | None = None

    max_tokens_per_doc: Annotated[Anything, Only()] = UNSET
    max_chunks_per_doc: Annotated[Anything, Only()] = UNSET
    rank_fields: Annotated[Anything, Only()] = UNSET

    @property
    def texts(self) -> tuple[str, ...]:
        """The documents."""
        return tuple(given if isinstance(given, str) else given.text for given in self.documents)

    def intent(self, kind: Kind, task_header: str | None = None) -> Intent:
        """The request after all its checks, for a model that scores pairs or one that makes embeddings."""
        texts = self.texts
        _check_length("query", self.query, len(texts))
        return self._intent(kind, (self.query,), texts, task_header)


class ScoreRequest(_Ranking, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/score``: how well each of `text_2` matches `text_1`, which is one text, or one for each."""

    text_1: Text | TextList
    text_2: Text | TextList

    @property
    def texts(self) -> tuple[str, ...]:
        """The second texts."""
        return _listed(self.text_2)

    def intent(self, kind: Kind, task_header: str | None = None) -> Intent:
        """The request after all its checks, for a model that scores pairs or one that makes embeddings."""
        queries, texts = _listed(self.text_1), self.texts
        if len(queries) not in {1, len(texts)}:
            message = f"'text_1' has {len(queries)} texts and 'text_2' {len(texts)}: send one, or as many."
            raise invalid("text_1", message)
        if len(queries) == 1:
            _check_length("text_1", queries[0], len(texts))
        return self._intent(kind, queries, texts, task_header)


def _listed(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _check_length(field: str, query: str, count: int) -> None:
    """Refuse a text that would be read so often that reading it takes seconds."""
    if len(query) * count > MAX_PAIRED_CHARACTERS:
        message = f"'{field}' is too long: times the number of texts it may have {MAX_PAIRED_CHARACTERS} characters."
        raise invalid(field, message)


class RankedDocument(msgspec.Struct):
    """A document's place among those that were sent, and how relevant it is: the more, the better."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class RerankAnswer(msgspec.Struct):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage
    object: Literal["rerank"] = "rerank"


class ScoredPair(msgspec.Struct):
    """How well the second text of a pair matches the first."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreAnswer(msgspec.Struct):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[ScoredPair]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
