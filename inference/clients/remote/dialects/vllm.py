"""vLLM (``vllm serve``)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from inference.clients.remote.dialects.base import Ask, SaltingDialect
from inference.clients.remote.faults import UnclearError
from inference.clients.remote.tokens import Count, counted, text_in, tokens_in
from inference.errors import EngineError, InvalidRequestError
from inference.types import GenerationRequest, Guidance, GuidanceKind, Tokens


class VLLM(SaltingDialect):
    """Exact counts before (``/tokenize`` applies the chat template) and during a request."""

    name = "vllm"
    takes_reasoning = True
    takes_values = True
    takes_effort = True
    continuing = MappingProxyType({"continue_final_message": True, "add_generation_prompt": False})
    probe = "/health"
    no_top_k = -1
    guides = frozenset(GuidanceKind)
    guides_prompts = True
    scores = True
    salted_since = (0, 9, 0)
    tokenizes = "exact (/tokenize)"

    def guidance(self, guidance: Guidance) -> dict[str, Any]:
        """JSON as OpenAI has it; the rest by vLLM's names, since 0.11 and before, of which it ignores the others."""
        value: str | list[str]
        match guidance.kind:
            case GuidanceKind.JSON_SCHEMA | GuidanceKind.JSON_OBJECT:
                return super().guidance(guidance)
            case GuidanceKind.CHOICE:
                name, value = "choice", [*guidance.choices]
            case GuidanceKind.REGEX:
                name, value = "regex", guidance.source
            case GuidanceKind.LARK:
                name, value = "grammar", guidance.source
        return {"structured_outputs": {name: value}, f"guided_{name}": value}

    def refusal(self, error: Any, kind: Any) -> EngineError:
        """Most versions say 400 of whatever goes wrong in a stream; what is known to be wrong they refuse before it."""
        refusal = super().refusal(error, kind)
        if isinstance(refusal, InvalidRequestError):
            return UnclearError("The engine failed before it began to answer.")
        return refusal

    def embedding(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        """Return the body; an input is cut to the model's context where the client allows it."""
        return super().embedding(request, model) | self._cut(request)

    def score(self, request: GenerationRequest, model: str) -> dict[str, Any]:
        """Return the body; a pair is cut to the model's context where the client allows it."""
        return super().score(request, model) | self._cut(request)

    def _cut(self, request: GenerationRequest) -> dict[str, Any]:
        return {"truncate_prompt_tokens": -1} if request.truncate else {}

    async def count_chat(self, ask: Ask, request: GenerationRequest, model: str) -> Count:
        """Ask ``/tokenize`` for the whole chat."""
        body = {"model": model, "messages": self.messages(request, with_images=False)}
        tools = {} if request.tools is None else {"tools": self.tools(request)["tools"]}
        answer = await ask("/tokenize", body | tools | self.template(request))
        return counted(answer) or await super().count_chat(ask, request, model)

    async def count_text(self, ask: Ask, text: str, model: str) -> int | None:
        """Ask ``/tokenize`` for the text."""
        count = counted(await ask("/tokenize", {"model": model, "prompt": text}))
        return None if count is None else count.tokens

    async def tokens(
        self, ask: Ask, request: GenerationRequest, model: str, *, special: bool, with_texts: bool
    ) -> Tokens | None:
        """Ask ``/tokenize`` for the prompt or the whole chat."""
        if request.prompt is None:
            body: dict[str, Any] = {"model": model, "messages": self.messages(request, with_images=False)}
            body |= {} if request.tools is None else {"tools": self.tools(request)["tools"]}
            body |= self.template(request)
        else:
            body = {"model": model, "prompt": request.prompt, "add_special_tokens": special}
        return tokens_in(await ask("/tokenize", body | {"return_token_strs": with_texts}))

    async def text(self, ask: Ask, ids: tuple[int, ...], model: str) -> str | None:
        """Ask ``/detokenize``."""
        return text_in(await ask("/detokenize", {"model": model, "tokens": list(ids)}), "prompt")
