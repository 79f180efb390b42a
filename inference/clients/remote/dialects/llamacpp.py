"""llama.cpp (``llama-server``)."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from inference.clients.remote.dialects.base import Ask, Dialect, Limits
from inference.clients.remote.tokens import Count, number, text_in, tokens_in
from inference.clients.remote.usage import Report
from inference.types import GenerationRequest, Guidance, GuidanceKind, Tokens


class LlamaCpp(Dialect):
    """Has no salt: unless prefixes are shared, each request computes its whole prompt. Counts exactly all along."""

    name = "llamacpp"
    probe = "/health"
    extras = frozenset({"top_k", "min_p", "ignore_eos", "repetition_penalty", "logit_bias", "logprobs"})
    repetition = "repeat_penalty"
    guides = frozenset({GuidanceKind.JSON_SCHEMA, GuidanceKind.JSON_OBJECT, GuidanceKind.CHOICE})
    takes_values = True
    continuing = MappingProxyType({})  # it goes on with any last message of the assistant's
    isolates_prefixes = True
    isolation = "not used (cache_prompt is off)"
    counts_always = True
    tokenizes = "exact (/apply-template, /tokenize)"

    def chat(self, request: GenerationRequest, model: str, max_tokens: int, salt: str) -> dict[str, Any]:
        """Return the body with timings, which count, in every event; prefixes are reused only where they are shared."""
        body = super().chat(request, model, max_tokens, salt)
        return body | {"timings_per_token": True, "cache_prompt": not salt}

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """JSON as OpenAI has it, choices in its own notation of grammars."""
        if guidance.kind is GuidanceKind.CHOICE:
            texts = (json.dumps(choice, ensure_ascii=False) for choice in guidance.choices)
            return {"grammar": f"root ::= {' | '.join(texts)}"}
        if guidance.kind is GuidanceKind.JSON_OBJECT:
            return {"response_format": {"type": "json_object", "schema": {"type": "object"}}}
        return super().guidance(guidance)

    def seed(self, seed: int) -> int:
        """llama.cpp has 32 bits."""
        return seed & 0xFFFFFFFF

    def report(self, usage: Any, timings: Any) -> Report:
        """Take the timings where an event has no usage yet."""
        report = super().report(usage, timings)
        if report.completion is not None or not isinstance(timings, dict):
            return report
        computed, cached = number(timings.get("prompt_n")), number(timings.get("cache_n"))
        return Report(
            prompt=None if computed is None or cached is None else computed + cached,
            cached=cached,
            completion=number(timings.get("predicted_n")),
        )

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Have the template applied, then count its text."""
        answer = await ask("/apply-template", self._templated(request))
        prompt = answer.get("prompt") if isinstance(answer, dict) else None
        count = await self.count_text(ask, prompt, model) if isinstance(prompt, str) else None
        if count is None:
            return await super().count_chat(ask, request, model)
        return Count(count, count)

    def _templated(self, request: GenerationRequest) -> dict[str, Any]:
        body = {"messages": self.messages(request, with_images=False)}
        return body | self.tools(request) | self.template(request)

    async def count_text(self, ask: Ask, text: str, model: str) -> int | None:
        """Ask ``/tokenize`` for the text with the token that begins it."""
        answer = await ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        return len(tokens) if isinstance(tokens, list) else None

    async def limits(self, ask: Ask, model: str) -> Limits:
        """llama.cpp serves one model whatever a request calls it, and says its context at ``/props``."""
        answer = await ask("/props")
        settings = answer.get("default_generation_settings") if isinstance(answer, dict) else None
        return Limits(number(settings.get("n_ctx"))) if isinstance(settings, dict) else Limits()

    async def tokens(
        self, ask: Ask, request: GenerationRequest, model: str, *, special: bool, with_texts: bool
    ) -> Tokens | None:
        """Have the template applied to a chat, then ask ``/tokenize`` for the text, whose pieces it can't write."""
        prompt: object = request.prompt
        if prompt is None:
            answer = await ask("/apply-template", self._templated(request))
            prompt = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(prompt, str):
            return None
        return tokens_in(await ask("/tokenize", {"content": prompt, "add_special": special, "parse_special": True}))

    async def text(self, ask: Ask, ids: tuple[int, ...], model: str) -> str | None:
        """Ask ``/detokenize``."""
        return text_in(await ask("/detokenize", {"tokens": list(ids)}), "content")
