"""TensorRT-LLM (``trtllm-serve``)."""

from __future__ import annotations

from typing import Any

from inference.clients.remote.dialects.base import Ask, SaltingDialect, alternatives, schema_of
from inference.types import Guidance, GuidanceKind


class TensorRTLLM(SaltingDialect):
    """Refuses fields that it doesn't know, so a version without ``cache_salt`` shows itself by a 400."""

    name = "trtllm"
    probe = "/health"
    guides = frozenset(GuidanceKind) - {GuidanceKind.LARK}

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """TensorRT-LLM's own form of `response_format`."""
        match guidance.kind:
            case GuidanceKind.JSON_SCHEMA:
                form = {"type": "json", "schema": schema_of(guidance)}
            case GuidanceKind.JSON_OBJECT:
                form = {"type": "json_object"}
            case GuidanceKind.CHOICE:
                form = {"type": "regex", "regex": alternatives(guidance.choices)}
            case _:
                form = {"type": "regex", "regex": guidance.source}
        return {"response_format": form}

    async def too_old(self, ask: Ask) -> str:
        """An old version refuses the salt itself."""
        return ""
