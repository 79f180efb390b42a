"""One request: what it used, what it cost and why it went where it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from billing.models import RateCardVersion, UsageRecord
from billing.selectors.prices import bill_of
from billing.selectors.usage import hold_of, record_of
from control.console.tenancy import Place, tenant_page
from routing.types import STEP_TITLES
from tenancy.models import APIKey, Project, User

_CLASSES = {
    "input": "Input",
    "cache_read": "Cached input",
    "cache_write_short": "Cache write, short",
    "cache_write_long": "Cache write, long",
    "output": "Output",
    "reasoning": "Reasoning",
}


@dataclass(frozen=True, slots=True)
class ClassLine:
    """One line of what a request cost: tokens, credits per million of them, and µcr; None where nothing was charged."""

    name: str
    tokens: int
    rate: int | None
    amount: int | None


@require_safe
@tenant_page
def detail(request: HttpRequest, place: Place, request_id: UUID) -> HttpResponse:
    """Show the last revision of the request's usage record, or what is held for it while it runs.

    The hold is looked at first: a request that is settled between the two queries is found settled.
    """
    hold = hold_of(request_id, place.tenant.id)
    record = record_of(request_id, place.tenant.id)
    if record is None:
        if hold is None:
            raise Http404
        return render(request, "console/request_open.html", place.context(page="usage", hold=hold))
    context = place.context(
        page="usage",
        record=record,
        lines=lines_of(record),
        key=APIKey.objects.of(place.tenant).filter(id=record.api_key).first() if record.api_key else None,
        asked_by=User.objects.filter(id=record.user).first() if record.user else None,
        project=Project.objects.of(place.tenant).filter(id=record.project).first(),
        card=RateCardVersion.objects.select_related("card").filter(pk=record.card_version).first(),
        multiplier=f"{record.multiplier_bp / 100:g} %" if record.multiplier_bp != 10_000 else "",
        candidates=told(record, "candidates"),
        attempts=told(record, "attempts"),
        signals=steps_of(record),
        held_to=held_to(record),
        task_source=STEP_TITLES.get(record.route.get("task_source", ""), "").lower(),
        tokens_per_second=speed_of(record),
    )
    return render(request, "console/request.html", context)


def lines_of(record: UsageRecord) -> list[ClassLine]:
    """Return the classes that have tokens, disjoint, in the order of a bill, and the fee; input and output always."""
    bill = {line.usage_class: line for line in bill_of(record)}
    lines = []
    for name, text in _CLASSES.items():
        tokens, line = getattr(record, f"{name}_tokens"), bill.get(name)
        if tokens or name in ("input", "output"):
            lines.append(ClassLine(text, tokens, line.rate if line else None, line.amount if line else None))
    if "request" in bill:
        lines.append(ClassLine("Request fee", 1, None, bill["request"].amount))
    return lines


def told(record: UsageRecord, part: str) -> list[dict[str, Any]]:
    """Return the candidates or signals of the routing decision, or of a request that moved its attempts."""
    found = record.route.get(part, [])
    return found if isinstance(found, list) else []


def steps_of(record: UsageRecord) -> list[dict[str, Any]]:
    """Return the steps of the routing decision with their titles, similarities in percent."""
    return [
        {
            **one,
            "title": STEP_TITLES.get(one.get("step", ""), ""),
            "nearest": [f"{near['rule']} {near['similarity'] * 100:.1f} %" for near in one.get("similarities", ())],
        }
        for one in told(record, "signals")
    ]


def held_to(record: UsageRecord) -> str:
    """Return what the rule held the answer to, in words; empty where it was free."""
    held = record.route.get("held_to", "")
    if held == "json_schema":
        return "JSON with the fields that it names"
    return f"one of {held} labels" if isinstance(held, int) else held and "JSON"


def speed_of(record: UsageRecord) -> str:
    """Return output tokens per second after the first, empty where that means nothing."""
    if record.duration_ms is None or record.ttft_ms is None or record.output_tokens < 2:
        return ""
    seconds = (record.duration_ms - record.ttft_ms) / 1000
    return f"{(record.output_tokens - 1) / seconds:.0f}" if seconds > 0 else ""
