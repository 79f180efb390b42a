"""SGLang (``sglang.launch_server``)."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from inference.clients.remote.dialects.base import Ask, SaltingDialect, alternatives
from inference.clients.remote.messages import prompt_texts
from inference.clients.remote.tokens import Count, counted, number, templated, text_in, tokens_in
from inference.clients.remote.usage import Report
from inference.types import GenerationRequest, Guidance, GuidanceKind, Tokens


class SGLang(SaltingDialect):
    """Counts the texts of a prompt, but not what its chat template adds: that is estimated."""

    name = "sglang"
    takes_reasoning = True
    takes_values = True
    takes_effort = True
    continuing = MappingProxyType({"continue_final_message": True})
    probe = "/health"
    no_top_k = -1
    guides = frozenset(GuidanceKind) - {GuidanceKind.LARK}  # its grammars are in another notation
    salted_since = (0, 5, 3)
    version_path = "/get_server_info"
    tokenizes = "counted (/tokenize), the chat template estimated"

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """JSON as OpenAI has it, the rest as a regular expression."""
        if guidance.kind is GuidanceKind.REGEX:
            return {"regex": guidance.source}
        if guidance.kind is GuidanceKind.CHOICE:
            return {"regex": alternatives(guidance.choices)}
        return super().guidance(guidance)

    def report(self, usage: Any, timings: Any) -> Report:
        """SGLang has its reasoning tokens beside the others, not in details."""
        report = super().report(usage, timings)
        if report.reasoning is None and isinstance(usage, dict):
            report = replace(report, reasoning=number(usage.get("reasoning_tokens")))
        return report

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Ask ``/tokenize`` for the texts and add what a chat template may."""
        texts = "\n".join(prompt_texts(request))
        count = await self.count_text(ask, texts, model)
        if count is None:
            return await super().count_chat(ask, request, model)
        return templated(count, count, len(request.messages))

    async def count_text(self, ask: Ask, text: str, model: str) -> int | None:
        """Ask ``/tokenize`` for the text."""
        count = counted(await ask("/tokenize", {"model": model, "prompt": text}))
        return None if count is None else count.tokens

    async def tokens(
        self, ask: Ask, request: GenerationRequest, model: str, *, special: bool, with_texts: bool
    ) -> Tokens | None:
        """Ask ``/tokenize`` for a raw prompt; it takes no chats."""
        if request.prompt is None:
            return None
        body = {"model": model, "prompt": request.prompt, "add_special_tokens": special}
        return tokens_in(await ask("/tokenize", body))

    async def text(self, ask: Ask, ids: tuple[int, ...], model: str) -> str | None:
        """Ask ``/detokenize``."""
        body = {"model": model, "tokens": list(ids), "skip_special_tokens": False}
        return text_in(await ask("/detokenize", body), "text")
