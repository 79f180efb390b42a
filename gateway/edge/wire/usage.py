"""Usage as clients see it: tokens, and what they cost in credits."""

from __future__ import annotations

import msgspec

from billing.unit import format_credits
from inference.types import Usage


class PromptDetails(msgspec.Struct):
    """Of the prompt: tokens that came from the prefix cache."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """Of the answer: tokens spent on reasoning."""

    reasoning_tokens: int = 0


class ChatUsage(msgspec.Struct):
    """Usage of a chat completion. `credits` is an exact decimal string, `credits_micro` the same in µcr."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    credits: str | None
    credits_micro: int | None


class EmbeddingUsage(msgspec.Struct):
    """Usage of an embedding request."""

    prompt_tokens: int
    total_tokens: int
    credits: str | None
    credits_micro: int | None


class InputDetails(msgspec.Struct):
    """Of the input: tokens from the prefix cache; writing to it is not priced apart."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Usage of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int
    credits: str | None
    credits_micro: int | None


def chat_usage(usage: Usage, charge: int | None) -> ChatUsage:
    """`usage` in Chat Completions' shape; without a charge the credits are null."""
    return ChatUsage(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        total_tokens=usage.prompt + usage.completion,
        prompt_tokens_details=PromptDetails(usage.cache_read),
        completion_tokens_details=CompletionDetails(usage.reasoning),
        credits=credits_text(charge),
        credits_micro=charge,
    )


def embedding_usage(usage: Usage, charge: int | None) -> EmbeddingUsage:
    """`usage` in Embeddings' shape."""
    return EmbeddingUsage(usage.prompt, usage.prompt, credits_text(charge), charge)


def response_usage(usage: Usage, charge: int | None) -> ResponseUsage:
    """`usage` in Responses' shape."""
    return ResponseUsage(
        input_tokens=usage.prompt,
        input_tokens_details=InputDetails(usage.cache_read),
        output_tokens=usage.completion,
        output_tokens_details=CompletionDetails(usage.reasoning),
        total_tokens=usage.prompt + usage.completion,
        credits=credits_text(charge),
        credits_micro=charge,
    )


def credits_text(micro: int | None) -> str | None:
    """µcr as a decimal string of credits."""
    return None if micro is None else format_credits(micro)
