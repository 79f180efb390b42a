"""The attributes of a generation's spans, by OpenTelemetry's conventions for generative AI; without any text."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING
from uuid import UUID

from gateway.durable.outcome import Outcome
from gateway.generation.intent import Intent
from gateway.runtime import tracing
from inference.types import Finished, Kind
from routing.types import Route

if TYPE_CHECKING:
    from opentelemetry.trace import Span

FIRST_TOKEN = "gen_ai.first_token"  # noqa: S105 - an event's name

_OPERATIONS = {Kind.CHAT: "chat", Kind.EMBEDDING: "embeddings", Kind.SCORE: "rerank", Kind.CLASSIFICATION: "classify"}


def engine_call(request: UUID, tenant: UUID, intent: Intent, route: Route) -> AbstractContextManager[Span | None]:
    """Return the span of an admitted request's time on its engines."""
    if not tracing.is_on():
        return tracing.NOTHING
    operation = _OPERATIONS[intent.kind]
    given: dict[str, str | float | bool | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": intent.model,
        "gen_ai.response.model": route.model,
        "gen_ai.response.id": str(request),
        "gen_ai.request.stream": intent.stream,
        "gen_ai.request.max_tokens": intent.sampling.max_tokens,
        "gen_ai.request.temperature": intent.sampling.temperature,
        "gen_ai.request.top_p": intent.sampling.top_p,
        "sluice.tenant": str(tenant),
        "sluice.task": route.task,
    }
    return tracing.call(
        f"{operation} {route.model}", {name: value for name, value in given.items() if value is not None}
    )


def engine_ended(span: Span, finished: Finished, route: Route) -> None:
    """Say how the engine ended the request, and on which deployment."""
    usage = finished.usage
    tracing.describe(
        span,
        {
            "gen_ai.response.finish_reasons": [finished.reason.value],
            "gen_ai.usage.input_tokens": usage.prompt,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.output_tokens": usage.completion,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "gen_ai.response.model": route.model,
            "sluice.deployment": route.deployment_name,
            "sluice.node": route.node or None,
            "error.type": finished.error.code if finished.error is not None else None,
        },
    )
    if finished.error is not None:
        tracing.failed(span)


def settled(span: Span, outcome: Outcome) -> None:
    """Say what was charged; nothing of that is known while a settlement is pending."""
    tracing.describe(
        span,
        {
            "sluice.charge_micro": outcome.charge,
            "sluice.settlement_pending": outcome.charge is None,
            "sluice.waived": outcome.is_waived,
            "sluice.reason": outcome.error.code if outcome.error else outcome.sluice_reason or outcome.reason.value,
        },
    )
