"""vLLM (``vllm serve``)."""

from __future__ import annotations

from typing import Any

from inference.clients.remote.dialects.base import Ask, SaltingDialect
from inference.clients.remote.tokens import Count, counted
from inference.types import GenerationRequest


class VLLM(SaltingDialect):
    """Exact counts before (``/tokenize`` applies the chat template) and during a request."""

    name = "vllm"
    takes_reasoning = True
    probe = "/health"
    no_top_k = -1
    salted_since = (0, 9, 0)
    tokenizes = "exact (/tokenize)"

    def embedding(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        """Return the body; an input is cut to the model's context where the client allows it."""
        body = super().embedding(request, model)
        if request.truncate:
            body["truncate_prompt_tokens"] = -1
        return body

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Ask ``/tokenize`` for the whole chat."""
        answer = await ask("/tokenize", {"model": model, "messages": self.messages(request, with_images=False)})
        return counted(answer) or await super().count_chat(ask, request, model)

    async def count_text(self, ask: Ask, text: str, model: str) -> int | None:
        """Ask ``/tokenize`` for the text."""
        count = counted(await ask("/tokenize", {"model": model, "prompt": text}))
        return None if count is None else count.tokens
