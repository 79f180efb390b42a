"""Completions: text that goes on from a prompt, without messages and chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.generation.intent import Intent, Tier
from gateway.wire.common import (
    ChoiceSampling,
    Metadata,
    ModelName,
    MostLogprobs,
    OutputTokens,
    ShortText,
    StreamOptions,
    check_model,
    task_of,
)
from gateway.wire.decode import MAX_PROMPT_TOKENS, MAX_PROMPTS, MAX_TOKEN_ID, invalid
from gateway.wire.demands import Anything, Fields, Only
from gateway.wire.guidance import guidance_of
from gateway.wire.logprobs import CompletionLogprobs, PromptLogprobs
from gateway.wire.usage import ChatUsage
from inference.types import Kind

DEFAULT_TOKENS = 16  # what OpenAI's API generates where no limit is given

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)]
Prompt = str | tuple[int, ...]


class CompletionRequest(ChoiceSampling, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/completions``. `prompt` is a text, texts, one list of token ids, or lists of them."""

    model: ModelName
    prompt: str | Annotated[list[str | TokenId | TokenIds], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputTokens | None = None
    echo: bool | None = None
    logprobs: MostLogprobs | None = None
    metadata: Metadata | None = None
    user: ShortText | None = None

    suffix: Annotated[Anything, Only("")] = UNSET
    add_special_tokens: Annotated[Anything, Only(True)] = UNSET
    prompt_embeds: Annotated[Anything, Only()] = UNSET
    response_format: Annotated[Anything, Only({"type": "text"})] = UNSET

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_so_far(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def intents(self, task_header: str | None = None) -> list[Intent]:
        """A request for each prompt, after all checks; refuses what can't be honoured, naming the field."""
        fields = Fields()
        fields.check(self)
        check_model(self.model)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
        choices = self.choices(stream=bool(self.stream))
        if self.echo:
            if self.stream and self.logprobs is not None:
                raise invalid("logprobs", "The log-probabilities of an echoed prompt are not streamed.")
            if self.logprobs is not None and choices["prompt_logprobs"] is None:
                choices["prompt_logprobs"] = self.logprobs
        sampling = self.sampling(
            DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens,
            guidance_of(None, "response_format", self.structured_outputs),
            logprobs=self.logprobs,
            echo=bool(self.echo),
            **choices,
        )
        return [
            Intent(
                endpoint="completions",
                kind=Kind.CHAT,
                model=self.model,
                prompt=prompt,
                sampling=sampling,
                task=task_of(self.metadata, task_header),
                end_user=self.user,
                priority=self.priority or 0,
                tier=self.tier,
                stream=bool(self.stream),
                not_enforced=fields.not_enforced,
            )
            for prompt in _prompts(self.prompt)
        ]


def _prompts(given: str | list[Any]) -> list[Prompt]:
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise invalid("prompt", "'prompt' mixes texts and token ids.")
    if kinds == {int}:
        return [tuple(given)]
    if len(given) > MAX_PROMPTS:
        raise invalid("prompt", f"'prompt' has more than {MAX_PROMPTS} items.")
    return [item if isinstance(item, str) else tuple(item) for item in given]


class CompletionChoice(msgspec.Struct):
    """One choice of an answer or of a chunk. `sluice_reason` says more where `finish_reason` can't."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    sluice_reason: str | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer without streaming, and each event of a stream.

    In a stream `usage` is null on all but the last where the client asked for it, else left out.
    """

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: ChatUsage | UnsetType | None = UNSET
    service_tier: Tier
