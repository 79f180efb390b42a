"""TensorRT-LLM (``trtllm-serve``)."""

from __future__ import annotations

from inference.clients.remote.dialects.base import Ask, SaltingDialect


class TensorRTLLM(SaltingDialect):
    """Refuses fields that it doesn't know, so a version without ``cache_salt`` shows itself by a 400."""

    name = "trtllm"
    probe = "/health"

    async def too_old(self, ask: Ask) -> str:
        """An old version refuses the salt itself."""
        return ""
