"""Words in place of the database's names."""

from __future__ import annotations

from collections.abc import Mapping

CLASS_WORDS: Mapping[str, str] = {
    "input": "Input",
    "cache_read": "Cached",
    "cache_write_short": "Cache write, short",
    "cache_write_long": "Cache write, long",
    "output": "Output",
    "reasoning": "Reasoning",
}
CLASS_HEADS: Mapping[str, str] = {**CLASS_WORDS, "cache_write_short": "Write, short", "cache_write_long": "Write, long"}
"""The same for heads of narrow columns."""
KIND_WORDS: Mapping[str, str] = {
    "chat": "chat",
    "embedding": "embeddings",
    "score": "ranking",
    "classification": "labels",
}
