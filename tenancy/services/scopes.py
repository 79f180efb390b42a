"""Scopes: what a key may do, and which of them stand for several."""

from __future__ import annotations

from collections.abc import Iterable

ALL, READ_ONLY, MANAGEMENT = "inference", "inference.read", "management"

INFERENCE = {
    "chat": "Chat Completions",
    "completions": "Completions",
    "responses.read": "Responses: retrieve",
    "responses.write": "Responses: create, cancel, delete",
    "messages": "Messages and counting their tokens",
    "embeddings": "Embeddings",
    "ranking": "Rerank and score",
    "classification": "Classify",
    "tokenize": "Tokenize and detokenize",
    "files.read": "Files: list, download",
    "files.write": "Files: upload, delete",
    "batches.read": "Batches: list, retrieve",
    "batches.write": "Batches: create, cancel",
    "adapters.read": "Adapters: list, show",
    "adapters.write": "Adapters: create, delete",
    "models.read": "Models: list, show",
    "usage.read": "Usage of single requests",
}
"""The scopes of the data plane and what they allow, in words."""
SCOPES = (ALL, READ_ONLY, *INFERENCE, MANAGEMENT)
"""Every scope that a key may be given."""

SENDS = {
    "chat": frozenset({"chat", "completions", "messages", "responses.write"}),
    "embedding": frozenset({"embeddings"}),
    "score": frozenset({"ranking"}),
    "classification": frozenset({"classification"}),
}
"""Of which one a key needs to send a request of a kind."""

_STANDS_FOR = {
    ALL: frozenset({READ_ONLY, *INFERENCE}),
    READ_ONLY: frozenset(scope for scope in INFERENCE if scope.endswith(".read")),
}


def expanded(scopes: Iterable[str]) -> frozenset[str]:
    """Return these scopes and those that they stand for: "inference" for all of the data plane's, also those to come,
    "inference.read" for those that only read.
    """
    given = frozenset(scopes)
    return given.union(*(_STANDS_FOR.get(scope, ()) for scope in given))
