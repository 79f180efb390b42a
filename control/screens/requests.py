"""The list of requests, ran, running and refused in one order of time: filters from the address, pages, chart and CSV.

Both sides show it: a tenant its own requests, the operator everybody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from base.ids import moment_of, request_id_in
from base.units import format_credits
from billing.models import Hold, UsageRecord
from billing.selectors import requests as ran
from billing.selectors.requests import MOST_READ, Unit, Wanted
from control.belongings.download import csv_of
from control.screens.charts import Chart, stacked
from control.screens.figures import cell, grouped, is_of_our_time, short
from control.screens.tables import Cell, Column, Row, State, Table
from gateway.runtime import refused
from gateway.runtime.models import RefusedRequest, in_words
from routing.models import Deployment
from tenancy.models import APIKey, Membership, Tenant, User

PAGE = 50
MOST_CHOICES = 500  # keys and members that a filter offers
MOST_LINES = 100_000  # of a CSV
SPANS = {1: "1 hour", 24: "24 hours", 168: "7 days", 720: "30 days", 2160: "90 days"}
DEFAULT_HOURS = 168
STATES = {"ran": "Ran", "running": "Running", "refused": "Refused", "4xx": "Refused, 4xx", "5xx": "Refused, 5xx"}
_STATUSES: dict[str, tuple[int, ...]] = {"4xx": (4,), "5xx": (5,)}
_WELL = frozenset({"stop", "length", "tool_calls", ""})
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose page it is: that of `tenant`, or without one the operator's, who may look with a tenant's eyes too and then
    doesn't see all. `name` is what addresses need of the tenant.
    """

    tenant: Tenant | None
    name: Mapping[str, str] = field(default_factory=dict)
    sees_with_tenants_eyes: bool = False

    @property
    def is_operator(self) -> bool:
        """Whether everybody's requests are seen."""
        return self.tenant is None

    @property
    def sees_all(self) -> bool:
        """Whether the page shows what only operators see."""
        return self.is_operator and not self.sees_with_tenants_eyes

    def address(self, page: str, *args: Any, **query: str) -> str:
        """Return the address of this side's page: ``requests``, ``requests-csv`` or ``request``."""
        side = "operate" if self.is_operator else "console"
        asked = urlencode({name: value for name, value in {**self.name, **query}.items() if value})
        return reverse(f"{side}-{page}", args=args) + (f"?{asked}" if asked else "")


@dataclass(frozen=True)
class Asked:
    """The filters of a list, as its address has them; `tenant` is the operator's filter by a tenant's short name."""

    viewer: Viewer
    hours: int = DEFAULT_HOURS
    since: datetime | None = None
    until: datetime | None = None
    tenant: str = ""
    key: UUID | None = None
    member: UUID | None = None
    model: str = ""
    deployment: UUID | None = None
    state: str = ""
    end: str = ""
    exact: str = ""
    least: float | None = None  # seconds
    before: UUID | None = None
    after: UUID | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether a part of the requests of the time is asked for."""
        return any(getattr(self, name) for name in _FILTERS)

    def fields(self) -> dict[str, str]:
        """Return the address's query, without what is the default."""
        values: dict[str, Any] = {
            "tenant": self.tenant,
            "hours": "" if self.hours == DEFAULT_HOURS else self.hours,
            "since": self.since and self.since.strftime(_MOMENT),
            "until": self.until and self.until.strftime(_MOMENT),
            "key": self.key,
            "member": self.member,
            "model": self.model,
            "deployment": self.deployment,
            "state": self.state,
            "end": self.end,
            "exact": self.exact,
            "least": None if self.least is None else f"{self.least:g}",
            "before": self.before,
            "after": self.after,
        }
        return {name: str(value) for name, value in values.items() if value}

    def address(self, page: str = "requests", **changes: Any) -> str:
        """Return the address of the list with `changes`."""
        return self.viewer.address(page, **replace(self, **changes).fields())

    @cached_property
    def period(self) -> tuple[datetime, datetime | None]:
        """The time that is asked for; without an end it goes on."""
        since = self.since or timezone.now() - timedelta(hours=self.hours)
        return max(since, (self.until or timezone.now()) - LONGEST), self.until


LONGEST = timedelta(days=366)
"""A list and its chart are of a year at most."""
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_ENDS = ("stop", "length", "tool_calls", "cancelled", "engine_lost", "rate_limit_exceeded", "context_length_exceeded")
_FILTERS = ("tenant", "key", "member", "model", "deployment", "state", "end", "exact", "least")
_NO_FILTER: dict[str, Any] = {
    **{name: "" if name in {"tenant", "model", "state", "end", "exact"} else None for name in _FILTERS},
    **dict.fromkeys(("before", "after")),
}


def asked_of(viewer: Viewer, data: QueryDict) -> Asked:
    """Read the query; a value that can't be read counts as not given."""
    hours = data.get("hours", "")
    state, exact = data.get("state", ""), data.get("exact", "")
    return Asked(
        viewer=viewer,
        hours=int(hours) if hours in map(str, SPANS) else DEFAULT_HOURS,
        since=_moment(data.get("since", "")),
        until=_moment(data.get("until", "")),
        tenant=_text(data.get("tenant", "")) if viewer.is_operator else "",
        key=_uuid(data.get("key", "")),
        member=_uuid(data.get("member", "")),
        model=_text(data.get("model", "")),
        deployment=_uuid(data.get("deployment", "")) if viewer.is_operator else None,
        state=state if state in STATES else "",
        end=_text(data.get("end", "")),
        exact=exact if exact in {"yes", "no"} else "",
        least=_seconds(data.get("least", "")),
        before=_uuid(data.get("before", "")),
        after=_uuid(data.get("after", "")),
    )


def _text(given: str) -> str:
    return "" if "\0" in given else given.strip()[:120]


def _uuid(given: str) -> UUID | None:
    try:
        return UUID(given)
    except ValueError:
        return None


def _moment(given: str) -> datetime | None:
    try:
        found = parse_datetime(given)
    except ValueError:
        return None
    if found is None:
        return None
    try:
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        return None
    return found if is_of_our_time(found) else None


def _seconds(given: str) -> float | None:
    try:
        found = float(given)
    except ValueError:
        return None
    return found if 0 < found < 1e6 else None


Line = UsageRecord | Hold | RefusedRequest


def id_of(line: Line) -> UUID:
    """Return the request's id."""
    return line.request if isinstance(line, UsageRecord) else line.id


@dataclass(frozen=True, slots=True)
class Page:
    """A page's requests, newest first, and the ids from which the pages before and behind it begin; `reached` is where
    looking for more of them stopped.
    """

    lines: list[Line]
    newer: UUID | None
    older: UUID | None
    reached: UUID | None


class Requests:
    """The requests that are asked for, of one tenant or of all."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        tenant = asked.viewer.tenant
        self.nobody = False
        if tenant is None and asked.tenant:
            tenant = Tenant.objects.filter(slug=asked.tenant).first()
            self.nobody = tenant is None
        self.tenant = tenant
        since, until = asked.period
        self.wanted = Wanted(
            since=since,
            until=until,
            tenant=None if tenant is None else tenant.id,
            api_key=asked.key,
            user=asked.member,
            model=asked.model,
            deployment=asked.deployment,
            end=asked.end,
            exact={"yes": True, "no": False}.get(asked.exact),
            least_ms=None if asked.least is None else round(asked.least * 1000),
            before=asked.before,
            after=asked.after,
        )
        self._statuses = _STATUSES.get(asked.state, ())

    def _has(self, *states: str) -> bool:
        return not self.nobody and (not self.asked.state or self.asked.state in states)

    def page(self, size: int = PAGE) -> Page:
        """Return the page, at most four queries: of what each source has next, the first `size` in the page's order."""
        wanted, reached = self.wanted, None
        # Holds are read first: a request that is settled between the queries comes twice, and its record counts.
        holds = ran.holds_of(wanted, size + 1) if self._has("running") else []
        lines: list[Line] = []
        if self._has("ran"):
            reached = ran.reached_by(wanted)
            lines += ran.records_of(wanted, size + 1, reached)
        lines += holds
        if self._has("refused", "4xx", "5xx"):
            lines += refused.refused_of(wanted, size + 1, self._statuses)
        is_up = wanted.after is not None
        found = {id_of(line): line for line in reversed(lines)}
        ids = sorted(found, reverse=not is_up)
        if reached is not None:
            within = [one for one in ids if (one <= reached if is_up else one >= reached)]
            if len(within) > size:  # the page is full before looking stopped
                reached = None
            ids = within
        chosen = ids[:size]
        on = (chosen[-1] if len(ids) > size else None) or reached
        back = (chosen[0] if chosen else None) if wanted.before or wanted.after else None
        if is_up:
            chosen.reverse()
            back = chosen[-1] if chosen else None
            return Page([found[one] for one in chosen], on, back, reached)
        return Page([found[one] for one in chosen], back, on, reached)

    @cached_property
    def _unit(self) -> tuple[Unit, timedelta]:
        since, until = self.asked.period
        length = (until or timezone.now()) - since
        if length <= timedelta(hours=2):
            return "minute", timedelta(minutes=5)
        return ("hour", timedelta(hours=1)) if length <= 3 * _DAY else ("day", _DAY)

    def chart(self) -> Chart:
        """Return how many requests ran and were refused, by five minutes, hour or UTC day; a bar leads to its own."""
        unit, step = self._unit
        since, until = self.asked.period
        first, last = _floor(since, step), until or timezone.now()
        cells: Counter[tuple[str, str]] = Counter()
        buckets = {}
        at = first
        while at < last:
            buckets[_named(at, step)] = at
            at += step
        counts: dict[str, Mapping[datetime, int]] = {}
        if self._has("ran"):
            counts["Ran"] = ran.requests_by(unit, self.wanted)
        if self._has("refused", "4xx", "5xx"):
            counts["Refused"] = refused.refusals_by(unit, self.wanted, self._statuses)
        for series, found in counts.items():
            for moment, count in found.items():
                if (name := _named(_floor(moment, step), step)) in buckets:
                    cells[name, series] += count

        def leads_to(name: str) -> str:
            at = buckets[name]
            return self.asked.address(since=at, until=at + step, before=None, after=None)

        title = {"minute": "5 minutes (UTC)", "hour": "Hour (UTC)", "day": "Day (UTC)"}[unit]
        order = ("Ran", "Refused")
        return stacked(cells, list(buckets), show=grouped, axis=short, href=leads_to, order=order, unit=title)

    # -- as a table and as CSV ----------------------------------------------------------------------------------------

    def table(self, page: Page) -> Table:
        """Return the page as a table, whose rows open in the side sheet."""
        asked, names = self.asked, self._names(page.lines)
        viewer = asked.viewer
        columns = [
            Column("When", "time"),
            Column("Model", "name"),
            Column("End"),
            Column("Input", "number"),
            Column("Cached", "number"),
            Column("Output", "number"),
            Column("Credits", "credits"),
            Column("First token", "duration"),
            Column("Took", "duration"),
        ]
        rows = []
        for line in page.lines:
            facts, sender = facts_of(line), names.sender(line)
            if viewer.is_operator:
                sender = f"{names[tenant_of(line)]} · {sender}"
            model = Cell(line.model or "no model", viewer.address("request", id_of(line)), sender)
            rows.append(Row([facts.at, model, facts.state, *facts.figures], sheet=True))
        note = ""
        if page.reached is not None:
            note = f"{MOST_READ:,} requests were looked through, to {moment_of(page.reached):%-d %b, %H:%M:%S} UTC."
        return Table(
            "Requests",
            columns,
            rows,
            "No request matches." if asked.is_filtered else "No request in this time.",
            newer=asked.address(before=None, after=page.newer) if page.newer else "",
            older=asked.address(before=page.older, after=None) if page.older else "",
            note=note,
            id="requests",
        )

    def csv(self) -> Iterator[list[list[Any]]]:
        """Yield the lines of all pages for a CSV, at most `MOST_LINES`."""
        head = (
            *("time", "request", "tenant", "state", "status", "end", "model", "endpoint", "key_name", "api_key"),
            *("member", "input_tokens", "cached_tokens", "output_tokens", "credits", "exact", "waived"),
            *("first_token_ms", "duration_ms", "message"),
        )
        yield [list(head)]
        requests, left = Requests(replace(self.asked, before=None, after=None)), MOST_LINES
        while left > 0:
            page = requests.page(500)
            names = self._names(page.lines)
            values = (_values(line, names) for line in page.lines)
            yield [[cell(one) if isinstance(one, str) else one for one in line] for line in values]
            left -= len(page.lines)
            if page.older is None:
                return
            requests = Requests(replace(self.asked, before=page.older, after=None))

    def _names(self, lines: Sequence[Line]) -> Names:
        return Names(lines, with_tenants=self.asked.viewer.is_operator)

    # -- what the filters offer ---------------------------------------------------------------------------------------

    def keys(self) -> list[APIKey]:
        """Return the tenant's keys, newest first."""
        if self.tenant is None:
            return []
        return list(APIKey.objects.of(self.tenant).order_by("-created_at")[:MOST_CHOICES])

    def members(self) -> list[User]:
        """Return the tenant's people."""
        if self.tenant is None:
            return []
        people = Membership.objects.of(self.tenant).select_related("user").order_by("user__email")
        return [one.user for one in people[:MOST_CHOICES]]

    def deployments(self) -> list[Deployment]:
        """Return the deployments, with their models, for the operator."""
        if not self.asked.viewer.is_operator:
            return []
        return list(Deployment.objects.select_related("model").order_by("name")[:MOST_CHOICES])


class Names:
    """The names of the keys, people and tenants of some requests, in one query each."""

    def __init__(self, lines: Sequence[Line], *, with_tenants: bool) -> None:
        keys = {line.api_key for line in lines if line.api_key}
        users = {line.user for line in lines if line.user}
        self._names: dict[UUID | None, str] = {}
        if keys:
            self._names |= dict(APIKey.objects.unscoped().filter(id__in=keys).values_list("id", "name"))
        if users:
            self._names |= dict(User.objects.filter(id__in=users).values_list("id", "email"))
        if with_tenants and (tenants := {tenant_of(line) for line in lines}):
            self._names |= dict(Tenant.objects.filter(id__in=tenants).values_list("id", "name"))

    def __getitem__(self, identifier: UUID | None) -> str:
        return self._names.get(identifier, "")

    def sender(self, line: Line) -> str:
        """Return who sent it: a key, or somebody in the chat."""
        if line.api_key:
            return self[line.api_key] or "a key"
        return f"chat by {self[line.user]}" if self[line.user] else "chat"


def tenant_of(line: Line) -> UUID:
    """Return the id of the request's tenant."""
    return line.tenant_id if isinstance(line, RefusedRequest) else line.tenant


@dataclass(frozen=True, slots=True)
class Facts:
    """A request's line: when, how it ended, and its figures (tokens, µcr, milliseconds)."""

    at: datetime
    state: State
    input: int | None = None
    cached: int | None = None
    output: int | None = None
    charge: int | None = None
    first_ms: int | None = None
    took_ms: int | None = None

    @property
    def figures(self) -> tuple[int | None, ...]:
        """The figures in the order of the columns."""
        return self.input, self.cached, self.output, self.charge, self.first_ms, self.took_ms


def facts_of(line: Line) -> Facts:
    """Return the facts of a request that ran, runs or was refused."""
    at = moment_of(id_of(line))
    match line:
        case RefusedRequest():
            tone = "bad" if line.status >= 500 else "warn"
            return Facts(at, State(str(line.status), tone, line.reason), line.input_tokens)
        case Hold():
            return Facts(at, State("running"))
    tokens = line.input_tokens, line.cache_read_tokens, line.completion_tokens
    return Facts(at, state_of(line), *tokens, line.charge, line.ttft_ms, line.duration_ms)


def state_of(record: UsageRecord) -> State:
    """Return how a request ended, in a word."""
    note = "waived" if record.waived else "" if record.exact else "estimated"
    if record.finish in _WELL:
        return State(record.finish.replace("_", " ") or "done", "warn" if note else "good", note)
    return State(in_words(record.finish).lower(), "bad" if record.waived else "warn", note)


def _floor(at: datetime, step: timedelta) -> datetime:
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // step * step


def _named(at: datetime, step: timedelta) -> str:
    return f"{at:%-d %b}" if step >= _DAY else f"{at:%-d %b, %H:%M}"


def _values(line: Line, names: Names) -> list[Any]:
    facts, is_refused = facts_of(line), isinstance(line, RefusedRequest)
    record = line if isinstance(line, UsageRecord) else None
    endpoint = line.facts.get("endpoint", "") if isinstance(line, Hold) else line.endpoint
    state = "refused" if is_refused else "ran" if record else "running"
    return [
        facts.at.isoformat(timespec="milliseconds"),
        id_of(line),
        names[tenant_of(line)],
        state,
        line.status if isinstance(line, RefusedRequest) else "",
        line.code if isinstance(line, RefusedRequest) else record.finish if record else "",
        line.model,
        endpoint,
        names.sender(line) if line.api_key else "chat",
        line.api_key or "",
        names[line.user],
        *(_blank(value) for value in (facts.input, facts.cached, facts.output)),
        format_credits(record.charge) if record else "",
        _blank(record and record.exact),
        _blank(record and record.waived),
        *(_blank(value) for value in (facts.first_ms, facts.took_ms)),
        line.message if isinstance(line, RefusedRequest) else "",
    ]


def _blank(value: Any) -> Any:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def answer(request: HttpRequest, viewer: Viewer, context: dict[str, Any]) -> HttpResponse:
    """Answer with the list, or with the request whose id is asked for; `context` is that of the side's pages."""
    text = request.GET.get("id", "").strip()[:200]
    if (identifier := request_id_in(text)) is not None:
        return redirect(viewer.address("request", identifier))
    asked = asked_of(viewer, request.GET)
    requests = Requests(asked)
    told = {
        **context,
        "page": "requests",
        "asked": asked,
        "id": text,
        "table": requests.table(requests.page()),
        "chart": requests.chart(),
        "keys": requests.keys(),
        "members": requests.members(),
        "deployments": requests.deployments(),
        "spans": [
            (name, asked.address(hours=hours, since=None, until=None, before=None, after=None), hours == asked.hours)
            for hours, name in SPANS.items()
        ],
        "states": STATES.items(),
        "ends": _ENDS,
        "unfiltered": asked.address(**_NO_FILTER),
        "csv": asked.address("requests-csv", before=None, after=None),
        "hidden": {**viewer.name, **{name: asked.fields().get(name, "") for name in ("hours", "since", "until")}},
        "is_operator": viewer.is_operator,
    }
    return render(request, "requests/list.html", told)


def answer_csv(request: HttpRequest, viewer: Viewer, owner: UUID) -> StreamingHttpResponse:
    """Answer with the list as CSV, made while it is sent."""
    name = f"requests-{viewer.tenant.slug}" if viewer.tenant else "requests"
    return csv_of(owner, name, Requests(asked_of(viewer, request.GET)).csv())
