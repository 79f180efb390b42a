"""Usage as clients see it: tokens, and what they cost in credits."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from base.units import format_credits
from inference.types import Usage

Pending = Literal["pending"] | UnsetType


class PromptDetails(msgspec.Struct):
    """Of the prompt: tokens that came from the prefix cache."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """Of the answer: tokens spent on reasoning."""

    reasoning_tokens: int = 0


class ChatUsage(msgspec.Struct):
    """Usage of a chat completion, and what it cost: an exact decimal string of credits, and the same in µcr.

    Both are null and `settlement` is "pending" where the charge isn't settled yet; it will stand at ``/v1/usage``.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    credits: str | None
    credits_micro: int | None
    settlement: Pending = UNSET


class EmbeddingUsage(msgspec.Struct):
    """Usage of an embedding request."""

    prompt_tokens: int
    total_tokens: int
    credits: str | None
    credits_micro: int | None
    settlement: Pending = UNSET


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
    settlement: Pending = UNSET


class BillLine(msgspec.Struct):
    """The cost of one class of tokens, at the rate of the price list's version that the request was charged by.

    The class ``request`` is the fee of a request, which has no tokens and no rate. `credits` add up to the charge.
    """

    usage_class: str
    tokens: int
    credits_per_million: str
    credits: str


class PriceTier(msgspec.Struct):
    """The rates, in millionths of a credit per million tokens, of prompts that have at least so many tokens."""

    min_context: int
    rates: dict[str, int]


class PriceCard(msgspec.Struct):
    """The version of the price list that a request was charged by: what is needed to compute its charge again."""

    id: str
    digest: str
    request_fee: int
    batch_bp: int
    tiers: list[PriceTier]


class ProofStep(msgspec.Struct):
    """A node of the tree, and on which side of the hash so far it stands."""

    side: Literal["left", "right"]
    hash: str


class DaySeal(msgspec.Struct):
    """The signed seal over all that was booked for the tenant on a day."""

    number: int
    first: str
    day: str
    size: int
    root: str
    balance: int
    previous: str
    key: int
    sealed_at: str
    signature: str


class SealingKey(msgspec.Struct):
    """A public key of this installation; its neighbours vouch for it."""

    number: int
    public_key: str
    since: str
    signature: str
    own_signature: str


class UsageProof(msgspec.Struct):
    """The proof that the record is in its sealed day: the row as statements have it, the way to the root, the seal."""

    leaf: dict[str, Any]
    path: list[ProofStep]
    seal: DaySeal
    key: SealingKey


class RequestPromise(msgspec.Struct):
    """How the request did by its plan's promise: times and speeds are null where nothing is promised of them, or where
    they don't count.
    """

    kept: bool | None
    missed: list[Literal["ttft", "rate"]]
    not_counted: str | None
    own_queue_ms: int
    uncached_tokens: int
    ttft_ms: int | None
    promised_ttft_ms: int | None
    tokens_per_second: float | None
    promised_tokens_per_second: int | None
    credited: str | None
    credited_micro: int | None


class RequestUsage(msgspec.Struct, kw_only=True):
    """The usage and cost of one request. While its charge isn't settled its `status` is "pending", its `usage` null,
    and what is held stands beside it; the other fields come with the charge.
    """

    object: Literal["usage"] = "usage"
    request_id: str
    status: Literal["settled", "pending"]
    endpoint: str
    model: str
    task: str
    finish_reason: str | UnsetType = UNSET
    usage: ResponseUsage | None
    held: str | UnsetType = UNSET
    held_micro: int | UnsetType = UNSET
    is_exact: bool | UnsetType = UNSET
    waived: bool | UnsetType = UNSET
    revision: int | UnsetType = UNSET
    rate_card_version: str | UnsetType = UNSET
    multiplier_bp: int | UnsetType = UNSET
    refunded: str | UnsetType = UNSET
    refunded_micro: int | UnsetType = UNSET
    bill: list[BillLine] | UnsetType = UNSET
    card: PriceCard | UnsetType | None = UNSET
    proof: UsageProof | UnsetType | None = UNSET
    route: dict[str, Any]
    project: str
    api_key: str | None
    ttft_ms: int | UnsetType | None = UNSET
    duration_ms: int | UnsetType | None = UNSET
    promise: RequestPromise | UnsetType | None = UNSET
    reserved_at: str
    settled_at: str | UnsetType = UNSET


class CacheCreation(msgspec.Struct):
    """Tokens written to the cache, by how long they stay; writing is not priced apart, so there are none."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Of the output: tokens spent on thinking."""

    thinking_tokens: int = 0


class MessageUsage(msgspec.Struct):
    """Usage of a message: `input_tokens` were computed, those from the prefix cache stand apart."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    credits: str | None
    credits_micro: int | None
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation = msgspec.field(default_factory=CacheCreation)
    service_tier: Literal["standard"] = "standard"
    settlement: Pending = UNSET


def chat_usage(usage: Usage, charge: int | None) -> ChatUsage:
    """`usage` in Chat Completions' shape; a charge of None is one that isn't settled yet."""
    return ChatUsage(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        total_tokens=usage.prompt + usage.completion,
        prompt_tokens_details=PromptDetails(usage.cache_read),
        completion_tokens_details=CompletionDetails(usage.reasoning),
        **_cost(charge),
    )


def embedding_usage(usage: Usage, charge: int | None) -> EmbeddingUsage:
    """`usage` in Embeddings' shape."""
    return EmbeddingUsage(prompt_tokens=usage.prompt, total_tokens=usage.prompt, **_cost(charge))


def response_usage(usage: Usage, charge: int | None) -> ResponseUsage:
    """`usage` in Responses' shape."""
    return ResponseUsage(
        input_tokens=usage.prompt,
        input_tokens_details=InputDetails(usage.cache_read),
        output_tokens=usage.completion,
        output_tokens_details=CompletionDetails(usage.reasoning),
        total_tokens=usage.prompt + usage.completion,
        **_cost(charge),
    )


def message_usage(usage: Usage, charge: int | None) -> MessageUsage:
    """`usage` in the Messages API's shape."""
    return MessageUsage(
        input_tokens=usage.input,
        cache_read_input_tokens=usage.cache_read,
        output_tokens=usage.completion,
        output_tokens_details=OutputDetails(usage.reasoning),
        **_cost(charge),
    )


def _cost(charge: int | None) -> dict[str, Any]:
    pending = {"settlement": "pending"} if charge is None else {}
    return {"credits": credits_text(charge), "credits_micro": charge, **pending}


def credits_text(micro: int | None) -> str | None:
    """µcr as a decimal string of credits."""
    return None if micro is None else format_credits(micro)


class KeyBudget(msgspec.Struct, kw_only=True):
    """A budget that bears on a key's requests, in credits as exact decimal strings. A soft one refuses nothing."""

    id: str
    name: str
    scope: str
    window: Literal["day", "week", "month", "total"]
    hard: bool
    limit: str
    spent: str
    held: str
    remaining: str
    resets_at: str | None


class KeyLimit(msgspec.Struct, kw_only=True):
    """The requests that the key may send."""

    requests: int
    interval: str


class KeyData(msgspec.Struct, kw_only=True):
    """A key as OpenRouter's clients read it, amounts as numbers of credits. `limit` is that of the hard budget of the
    key that has the least left; days, weeks and months of `usage` are those of UTC.
    """

    label: str
    limit: float | None
    limit_remaining: float | None
    limit_reset: Literal["daily", "weekly", "monthly"] | None
    limit_resets_at: str | None
    usage: float
    usage_daily: float
    usage_weekly: float
    usage_monthly: float
    byok_usage: float = 0.0
    include_byok_in_limit: bool = False
    is_free_tier: bool = False
    is_management_key: bool = False
    is_provisioning_key: bool = False
    expires_at: str | None = None
    rate_limit: KeyLimit
    budgets: list[KeyBudget]


class KeyShown(msgspec.Struct):
    """The answer of ``GET /v1/key``."""

    data: KeyData
