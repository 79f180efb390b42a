"""Text Generation Inference."""

from __future__ import annotations

from typing import Any

from inference.clients.remote import faults
from inference.clients.remote.dialects.base import Ask, Dialect, Limits, alternatives, schema_of
from inference.clients.remote.tokens import Count, number
from inference.errors import EngineError
from inference.types import GenerationRequest, Guidance, GuidanceKind

_OVERLOADED = "overloaded"
_INVALID = ("validation", "template_error", "missing_template_variable", "tool_error")
_KINDS = {
    "Model is overloaded": _OVERLOADED,
    "Input validation error": "validation",
    "Template error": "template_error",
    "Missing template va": "missing_template_variable",  # the word is misspelt there
    "Tool error": "tool_error",
}


class TGI(Dialect):
    """Counts a chat exactly, says its usage at the end only, and has one prefix cache for all."""

    name = "tgi"
    extras = frozenset({"logprobs"})  # it takes `logit_bias` and does nothing with it
    probe = "/health"
    guides = frozenset(GuidanceKind) - {GuidanceKind.LARK}
    tokenizes = "exact (/chat_tokenize)"

    def chat(self, request: GenerationRequest, model: str, max_tokens: int, salt: str) -> dict[str, Any]:
        """Return the body without a `top_p` of 1, which TGI refuses."""
        body = super().chat(request, model, max_tokens, salt)
        if body.get("top_p", 0) >= 1:
            del body["top_p"]
        return body

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """TGI's own form of `response_format`."""
        match guidance.kind:
            case GuidanceKind.JSON_SCHEMA:
                grammar = {"type": "json", "value": schema_of(guidance)}
            case GuidanceKind.JSON_OBJECT:
                grammar = {"type": "json", "value": {"type": "object"}}
            case GuidanceKind.CHOICE:
                grammar = {"type": "regex", "value": alternatives(guidance.choices)}
            case _:
                grammar = {"type": "regex", "value": guidance.source}
        return {"response_format": grammar}

    def seed(self, seed: int) -> int:
        """TGI takes all 64 bits as they are."""
        return seed

    def refusal(self, error: Any, kind: Any) -> EngineError:
        """TGI says what kind of error it is; or 422 of every one, whose kind is then told by how its message begins."""
        message = faults.message_in(error)
        kind = kind or next((name for begin, name in _KINDS.items() if message.startswith(begin)), None)
        if kind in _INVALID:
            return faults.refusal_of(422, message)
        return faults.refusal_of(429, message) if kind == _OVERLOADED else faults.failed()

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Ask ``/chat_tokenize``, which applies the chat template."""
        body = {"model": model, "messages": self.messages(request, with_images=False)} | self.tools(request)
        answer = await ask("/chat_tokenize", body)
        tokens = answer.get("tokenize_response") if isinstance(answer, dict) else None
        if not isinstance(tokens, list):
            return await super().count_chat(ask, request, model)
        return Count(len(tokens), len(tokens))

    async def limits(self, ask: Ask, model: str) -> Limits:
        """TGI serves one model whatever a request calls it, and says its limits at ``/info``."""
        answer = await ask("/info")
        if not isinstance(answer, dict):
            return Limits()
        names = ("max_total_tokens", "max_input_tokens", "max_stop_sequences")
        return Limits(*(number(answer.get(name)) for name in names))
