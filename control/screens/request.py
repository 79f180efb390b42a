"""A request on one page, ran, running or refused: its facts, cost and waits, and the reasons of its route."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import NoReverseMatch, reverse

from base.ids import moment_of, request_id_in
from base.units import format_credits
from billing import promises
from billing.codes import Code
from billing.models import Hold, LedgerTransfer, MissedPromise, RateCardVersion, UsageRecord
from billing.seals.archived import ArchiveMissingError
from billing.selectors import requests as ran
from billing.selectors.prices import bill_of
from billing.selectors.promises import miss_of
from billing.services.costs import cost_of
from control.screens.ledger import WORDS
from control.screens.requests import Viewer, facts_of, tenant_of
from control.screens.tables import Cell, Column, Row, State, Table
from gateway.errors.advice import advice_for
from gateway.runtime import refused
from gateway.runtime.models import RefusedRequest
from routing.models import Deployment
from routing.types import STEP_TITLES
from tenancy.models import APIKey, Project, Tenant, User

_CLASSES = {
    "input": "Input",
    "cache_read": "Cached input",
    "cache_write_short": "Cache write, short",
    "cache_write_long": "Cache write, long",
    "output": "Output",
    "reasoning": "Reasoning",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A name with its page, and a short text beside it; without an address there is no page of it."""

    name: str
    address: str = ""
    about: str = ""


def page_of(name: str, *args: object, query: str = "") -> str:
    """Return the address of a page, empty where this installation has none of that name."""
    try:
        return reverse(name, args=args) + query
    except NoReverseMatch:
        return ""


def answer(request: HttpRequest, viewer: Viewer, text: str, context: dict[str, Any]) -> HttpResponse:
    """Answer with the page of the request that `text` names in any form of its id; 404 and what is known of that minute
    where there is none. `context` is that of the side's pages.

    The hold is looked at first: a request that is settled between the queries is found settled.
    """
    identifier = request_id_in(text)
    if identifier is None:
        return _unknown(request, viewer, None, context)
    if str(identifier) != text:
        return redirect(viewer.address("request", identifier))
    tenant = None if viewer.tenant is None else viewer.tenant.id
    hold = ran.hold_at(identifier, tenant)
    try:
        record = ran.record_at(identifier, tenant)
    except ArchiveMissingError as error:
        messages.warning(request, error.told)
        record = None
    line = record or hold or refused.refused_at(identifier, tenant)
    if line is None:
        return _unknown(request, viewer, identifier, context)
    facts = facts_of(line)
    told: dict[str, Any] = {
        **context,
        "page": "requests",
        "id": identifier,
        "facts": facts,
        "state": State(facts.state.word, facts.state.tone) if isinstance(line, RefusedRequest) else facts.state,
        "line": line,
        "about": _about(viewer, line),
        "list": viewer.address("requests"),
        "tenants_view": viewer.address("request", identifier, view="tenant") if viewer.sees_all else "",
        "own_view": viewer.address("request", identifier) if viewer.is_operator and not viewer.sees_all else "",
    }
    match line:
        case UsageRecord():
            told |= {"kind": "ran", **_of_record(line), "cost": _cost(line) if viewer.sees_all else ""}
        case Hold():
            told |= {"kind": "running", **_of_route(line.facts.get("route") or {})}
        case RefusedRequest():
            told |= {"kind": "refused", "advice": advice_for(line.status, line.code), "links": _ways_out(viewer, line)}
    return render(request, "requests/request.html", told)


def _unknown(request: HttpRequest, viewer: Viewer, identifier: UUID | None, context: dict[str, Any]) -> HttpResponse:
    reasons = refused.reasons_about(identifier, viewer.tenant.id) if identifier and viewer.tenant else []
    at = moment_of(identifier) if identifier else None
    columns = [Column("Reason", "name"), Column("Status", "number"), Column("Times", "number")]
    rows = [Row([one.words, one.status, one.count]) for one in reasons]
    table = Table("Refused in that minute", columns, rows)
    told = {"page": "requests", "id": identifier, "at": at, "reasons": table, "list": viewer.address("requests")}
    return render(request, "requests/unknown.html", {**context, **told}, status=404)


def _about(viewer: Viewer, line: UsageRecord | Hold | RefusedRequest) -> list[tuple[str, Link]]:
    """Return who sent the request and what served it, as links on the operator's side."""
    tenant = viewer.tenant or Tenant.objects.filter(id=tenant_of(line)).first()
    operates = viewer.sees_all
    found: list[tuple[str, Link]] = []
    if operates and tenant is not None:
        found.append(("Tenant", Link(tenant.name, page_of("operate-tenant", tenant.slug))))
    project = Project.objects.unscoped().filter(id=line.project).first() if line.project else None
    key = APIKey.objects.unscoped().filter(id=line.api_key).first() if line.api_key else None
    user = User.objects.filter(id=line.user).first() if line.user else None
    if project is not None:
        found.append(("Project", Link(project.name)))
    if key is not None:
        address = page_of("operate-tenant", tenant.slug) + "keys/" if operates and tenant else ""
        if not viewer.is_operator:
            address = viewer.address("requests", key=str(key.id))
        found.append(("Key", Link(key.name, address, f"…{key.last_four}")))
    elif user is not None:
        found.append(("Chat", Link(user.email, page_of("operate-person", user.pk) if operates else "")))
    if isinstance(line, RefusedRequest):
        return found
    if operates and (deployment := Deployment.objects.filter(id=line.deployment).first()) is not None:
        address = page_of("operate-engine", deployment.name)
        address = address or page_of("admin:routing_deployment_change", deployment.pk)
        found.append(("Deployment", Link(deployment.name, address)))
    route = (line.route if isinstance(line, UsageRecord) else line.facts.get("route")) or {}
    node = _node_of(route)
    if node:
        found.append(("Node", Link(node, page_of("operate-engines") if operates else "")))
    return found


def _of_tenant(viewer: Viewer, name: str, *args: object) -> str:
    query = "?" + "&".join(f"{key}={value}" for key, value in viewer.name.items()) if viewer.name else ""
    return page_of(name, *args, query=query)


def _node_of(route: dict[str, Any]) -> str:
    """Return where it ran: the last attempt's node, else the route's."""
    attempts = route.get("attempts") or []
    return str((attempts[-1] if attempts else route).get("node") or "")


def _ways_out(viewer: Viewer, line: RefusedRequest) -> list[Link]:
    """Return the pages that help with a refusal."""
    if viewer.is_operator:  # the pages are the tenant's
        return []
    wanted = {
        "credit": Link("Credit and limits", _of_tenant(viewer, "console-billing")),
        "model": Link("Models that you may use", _of_tenant(viewer, "console-models")),
        "key": Link("Keys and their limits", _of_tenant(viewer, "console-keys")),
        "api": Link("Reference of the API", page_of("docs")),
    }
    code = line.code
    about = []
    if line.status == 402 or "credit" in code or "limit" in code or "wallet" in code:
        about.append("credit")
    if "model" in code or code == "context_length_exceeded":
        about.append("model")
    if "key" in code or "scope" in code:
        about.append("key")
    if line.status in {400, 404, 405}:
        about.append("api")
    return [wanted[name] for name in about if wanted[name].address]


@dataclass(frozen=True, slots=True)
class ClassLine:
    """A line of a request's bill: tokens, credits per million of them, and µcr; None where nothing was charged."""

    name: str
    tokens: int | None
    rate: int | None
    amount: int | None


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request's time: milliseconds, and where it stands on a line of 1,000."""

    name: str
    ms: int
    series: int
    x: float
    width: float


def _of_record(record: UsageRecord) -> dict[str, Any]:
    return {
        "prices": _prices(record),
        "card": RateCardVersion.objects.select_related("card").filter(pk=record.card_version).first(),
        "multiplier": f"{record.multiplier_bp / 100:g} %" if record.multiplier_bp != 10_000 else "",
        "promise": _promise(record),
        "phases": phases_of(record),
        "tokens_per_second": speed_of(record),
        "transfers": _transfers(ran.transfers_at(record.request)),
        **_of_route(record.route),
    }


def _cost(record: UsageRecord) -> str:
    """Return in words what the request cost the operator; empty where its deployment wasn't calibrated."""
    cost = cost_of(record)
    if cost is None:
        return ""
    left = f", margin {100 * (record.charge - cost.amount) / record.charge:.0f} %" if record.charge else ""
    return f"{format_credits(cost.amount, separator=',')} credits{left}"


def _prices(record: UsageRecord) -> Table:
    """Return the lines, to the last digit: their sum is the charge."""
    columns = [Column("Class", "name"), *(Column(name, "number") for name in ("Tokens", "Per million", "Credits"))]
    rows = [Row([one.name, one.tokens, _exactly(one.rate), _exactly(one.amount)]) for one in lines_of(record)]
    return Table("Price lines", columns, [*rows, Row(["Charge", "", "", _exactly(record.charge)])])


def _exactly(micro: int | None) -> str | None:
    return None if micro is None else format_credits(micro, separator=",")


def lines_of(record: UsageRecord) -> list[ClassLine]:
    """Return the classes that have tokens, disjoint, in the order of a bill, and the fee; input and output always."""
    bill = {line.usage_class: line for line in bill_of(record)}
    lines = []
    for name, text in _CLASSES.items():
        tokens, line = getattr(record, f"{name}_tokens"), bill.get(name)
        if tokens or name in {"input", "output"}:
            lines.append(ClassLine(text, tokens, line.rate if line else None, line.amount if line else None))
    if "request" in bill:
        lines.append(ClassLine("Request fee", None, None, bill["request"].amount))
    if record.refunded:
        lines.append(ClassLine("Refunded", None, None, -record.refunded))
    return lines


@dataclass(frozen=True, slots=True)
class PromiseShown:
    """How a request did by its plan's promise, and what that gave back."""

    state: State
    text: str
    credit: str


def _promise(record: UsageRecord) -> PromiseShown | None:
    if record.promise is None:
        return None
    one = promises.read(record.promise)
    text = promises.in_words(one)
    beside = [f"{one.waited_ms:,} ms behind other requests of its tenant don’t count"] * bool(one.waited_ms)
    if one.ttft_ms is not None:
        beside.append(f"{one.uncached:,} tokens of the prompt weren’t cached")
    text = f"{text[0].upper()}{text[1:]}{'. ' if beside else ''}{'; '.join(beside)}."
    if not one.missed:
        return PromiseShown(State("not counted") if one.not_counted else State("kept", "good"), text, "")
    return PromiseShown(State("missed", "bad"), text, _credit(miss_of(record.request)))


def _credit(miss: MissedPromise | None) -> str:
    if miss is None or miss.credited is None:
        return "What it gives back is booked within seconds."
    if not miss.due:
        return "Nothing is given back: nothing was charged, or the plan gives nothing."
    cut = "" if miss.credited == miss.due else f" of {_exactly(miss.due)}: the month’s limit was reached"
    return f"{_exactly(miss.credited)} credits were given back{cut}."


def _transfers(transfers: list[LedgerTransfer]) -> Table:
    columns = [Column("Booked", "time"), Column("What", "name"), Column("Credits", "number")]
    rows = [
        Row([one.booked_at, Cell(WORDS[Code(one.code)], detail=_accounts(one)), _exactly(one.amount)])
        for one in transfers
    ]
    return Table("What was booked", columns, rows, "Nothing was booked.")


def _accounts(transfer: LedgerTransfer) -> str:
    paid, got = (str(account.kind).replace("_", " ") for account in (transfer.debit, transfer.credit))
    return f"from {paid} to {got}{f': {transfer.reason}' if transfer.reason else ''}"


def phases_of(record: UsageRecord) -> list[Phase]:
    """Return the parts of the request's time: until its credit was held, to its first token, to its last, and until it
    was settled. Clocks of several machines measured them, so none is less than nothing.
    """
    if record.duration_ms is None:
        return []
    arrived = moment_of(record.request)
    first = record.duration_ms if record.ttft_ms is None else min(record.ttft_ms, record.duration_ms)
    queued = min(max(_ms(record.reserved_at - arrived), 0), first)
    settled = max(_ms(_first_settled(record) - arrived) - record.duration_ms, 0)
    given = [
        ("Queue and preparation", queued),
        ("Prefill" if record.ttft_ms is not None else "Running", first - queued),
        ("Decode", record.duration_ms - first),
        ("Settlement", settled),
    ]
    total = sum(ms for _, ms in given) or 1
    phases, x = [], 0.0
    for number, (name, ms) in enumerate(given, start=1):
        width = 1000 * ms / total
        phases.append(Phase(name, ms, number, round(x, 1), round(width, 1)))
        x += width
    return phases


def _first_settled(record: UsageRecord) -> datetime:
    """Return when the request was settled; a correction comes later and is no part of its time."""
    if record.revision == 0:
        return record.settled_at
    first = UsageRecord.objects.filter(day=record.day, request=record.request, revision=0).first()
    return record.settled_at if first is None else first.settled_at


def _ms(time: timedelta) -> int:
    return round(time / timedelta(milliseconds=1))


def speed_of(record: UsageRecord) -> str:
    """Return output tokens per second after the first, empty where that means nothing."""
    if record.duration_ms is None or record.ttft_ms is None or record.completion_tokens < 2:
        return ""
    seconds = (record.duration_ms - record.ttft_ms) / 1000
    return f"{(record.completion_tokens - 1) / seconds:.0f}" if seconds > 0 else ""


def _of_route(route: dict[str, Any]) -> dict[str, Any]:
    """Return why the request went where it went, as the route says it."""
    return {
        "route": route,
        "signals": _signals(route),
        "candidates": _told(route, "candidates"),
        "attempts": _told(route, "attempts"),
        "held_to": _held_to(route),
        "task_source": STEP_TITLES.get(route.get("task_source", ""), "").lower(),
    }


def _told(route: dict[str, Any], part: str) -> list[dict[str, Any]]:
    found = route.get(part, [])
    return found if isinstance(found, list) else []


def _signals(route: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of the decision with their titles, similarities in percent."""
    return [
        {
            **one,
            "title": STEP_TITLES.get(one.get("step", ""), ""),
            "nearest": [f"{near['rule']} {near['similarity'] * 100:.1f} %" for near in one.get("similarities", ())],
        }
        for one in _told(route, "signals")
    ]


def _held_to(route: dict[str, Any]) -> str:
    """Return what the rule held the answer to, in words; empty where it was free."""
    held = route.get("held_to", "")
    if held == "json_schema":
        return "JSON with the fields that it names"
    return f"one of {held} labels" if isinstance(held, int) else held and "JSON"
