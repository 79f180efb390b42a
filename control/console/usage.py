"""Usage to explore: a measure by group and bucket over a range, as chart, table and CSV; and refusals by reason."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_safe

from base.units import format_credits
from billing.selectors.promises import Kept, kept_in
from billing.selectors.usage import MOST_RECORDED, TimeSum, recorded_by, usage_by
from control.console.period import BUCKETS, DAYS, GROUPS, MEASURES, Asked, asked_of
from control.console.refusals import Span, error_rate, kept_by, refusals_of, refused_by
from control.console.tenancy import Place, tenant_page
from control.screens.charts import Chart, Tile, stacked
from control.screens.figures import amount, cell, grouped, moment, share, short, short_id, show_charge, show_credits
from control.screens.tables import Cell, Column, Row, Table
from tenancy.models import APIKey, Membership, Project

CHAT = "Chat"
EARLIER = "Earlier requests"
_ENDPOINTS = {
    "chat_completions": "chat.completions",
    "classify": "classification",
    "rerank": "ranking",
    "score": "ranking",
}
"""Endpoints of refused requests, where usage has another name."""
MOST_KEYS = 500  # whose names are known
MOST_OFFERED = 150  # keys that the filter offers
MOST_GROUPS = 50
LONGEST_LABEL = 40  # of a series
_NO_MODEL = "no model"


@dataclass(frozen=True, slots=True)
class Sums:
    """Usage and refusals added up; `charge` in µcr."""

    charge: int = 0
    requests: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    refused: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.cache_read_tokens + self.output_tokens

    def less(self, other: Sums) -> Sums:
        """Return the difference; no part is below zero, as sums by hour lag by seconds."""
        return Sums(*(max(mine - theirs, 0) for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def prompt(self) -> int:
        """The tokens that were asked, cached or not."""
        return self.input_tokens + self.cache_read_tokens


def sums_of(row: TimeSum) -> Sums:
    """Return one row's sums."""
    return Sums(row.charge, row.requests, row.input_tokens, row.cache_read_tokens, row.output_tokens)


_VALUES: dict[str, Callable[[Sums], int]] = {
    "credits": lambda sums: sums.charge,
    "tokens": lambda sums: sums.tokens,
    "requests": lambda sums: sums.requests,
    "refused": lambda sums: sums.refused,
}


@dataclass(frozen=True, slots=True)
class KeyName:
    """A key's name, and its maker."""

    id: UUID
    name: str
    last_four: str
    project: UUID
    maker: UUID | None
    email: str | None

    @property
    def label(self) -> str:
        """The key as series and filters name it."""
        return f"{self.name} …{self.last_four}"


class Explored:
    """The content of a view of usage, each part read once."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        tenant = asked.place.tenant
        columns = ("id", "name", "last_four", "project", "created_by", "created_by__email")
        found = APIKey.objects.of(tenant).order_by("-id").values_list(*columns)[:MOST_KEYS]
        self.keys = {row[0]: KeyName(*row) for row in found}
        self.reached: datetime | None = None
        projects = Project.objects.of(tenant).order_by("name").values_list("id", "name")
        self.projects: dict[UUID, str] = dict(projects)

    @cached_property
    def chosen_keys(self) -> set[UUID] | None:
        """The keys that count under the filters by key and member; None: all, and the chat."""
        asked = self.asked
        named = None if asked.api_key is None else {asked.api_key}
        if asked.member is None:
            return named
        mine = {key.id for key in self.keys.values() if key.maker == asked.member}
        return mine if named is None else mine & named

    def usage(self, *by: str) -> list[TimeSum]:
        """Return the sums by bucket, split by these columns."""
        asked, keys = self.asked, self.chosen_keys
        found: list[TimeSum] = []
        if keys is None or keys:
            found = usage_by(
                asked.bucket,
                asked.place.tenant.id,
                asked.since,
                asked.until,
                by=by,
                models=[asked.model] if asked.model else None,
                projects=[asked.project] if asked.project else (),
                api_keys=keys or (),
            )
        if asked.member is not None and asked.api_key is None:
            found += self._recorded(Q(api_key=None, user=asked.member), *by)
        return found

    def _recorded(self, matching: Q, *by: str) -> list[TimeSum]:
        """Return sums as `usage` does, from records; `reached` is the moment before which some were left out."""
        asked = self.asked
        if asked.model:
            matching &= Q(model=asked.model)
        if asked.project:
            matching &= Q(project=asked.project)
        tenant = asked.place.tenant.id
        found, self.reached = recorded_by(asked.bucket, tenant, asked.since, asked.until, by=by, matching=matching)
        return found

    @cached_property
    def people(self) -> dict[UUID, str]:
        """The addresses of the tenant's people, of those who left too."""
        found = Membership.objects.of(self.asked.place.tenant).values_list("user", "user__email")
        return dict(found[:MOST_KEYS])

    @cached_property
    def refusals(self) -> Span:
        """The refusals that count; of a project those of its keys, since a refused chat says no project."""
        asked, keys = self.asked, self.chosen_keys
        if asked.project is not None:
            of_project = {key.id for key in self.keys.values() if key.project == asked.project}
            keys = of_project if keys is None else keys & of_project
        return Span(asked.place.tenant, asked.since, asked.until, keys, asked.model)

    def _label(self, value: Any) -> str:
        """Return the group of a row that was split by model, project, endpoint, or else by key."""
        group = self.asked.group
        if group == "model":
            return value or _NO_MODEL
        if group == "project":
            return self.projects.get(value, "a project")
        if group == "endpoint":
            return _ENDPOINTS.get(value, value) or "not noted"
        if value is None:
            return CHAT if group == "key" or self.asked.member is None else self._person(self.asked.member)
        key = self.keys.get(value)
        if group == "member":
            return "an operator or admin key" if key is None or key.email is None else key.email
        return "an older key" if key is None else key.label

    def _person(self, user: UUID | None) -> str:
        return CHAT if user is None else self.people.get(user, "a former member")

    @cached_property
    def cells(self) -> dict[tuple[datetime, str], Sums]:
        """The sums by bucket and group."""
        found: dict[tuple[datetime, str], Sums] = defaultdict(Sums)
        for at, label, sums in (*self._used(), *self._refused()):
            found[at, label] += sums
        return found

    def _used(self) -> Iterator[tuple[datetime, str, Sums]]:
        """Yield the requests that ran. Endpoints, and members in the chat, are told apart by a bounded number of
        records; older requests are one group, so that the sums stay whole.
        """
        asked, keys = self.asked, self.chosen_keys
        if asked.group == "endpoint":
            mine = Q() if keys is None else Q(api_key__in=keys)
            if asked.member is not None and asked.api_key is None:
                mine |= Q(api_key=None, user=asked.member)
            yield from self._apart("endpoint", mine, self._label, EARLIER, self.usage)
            return
        is_apart = asked.group == "member" and keys is None
        rows = self.usage({"model": "model", "project": "project"}.get(asked.group, "api_key"))
        for row in rows:
            if not is_apart or row.group[0] is not None:
                yield row.at, self._label(row.group[0]), sums_of(row)
        if is_apart:
            chat = [row for row in rows if row.group[0] is None]
            yield from self._apart("user", Q(api_key=None), self._person, CHAT, lambda: chat)

    def _apart(
        self,
        column: str,
        matching: Q,
        label: Callable[[Any], str],
        rest: str,
        whole: Callable[[], Iterable[TimeSum]],
    ) -> Iterator[tuple[datetime, str, Sums]]:
        """Yield the sums by a column of the records; where not all were read the rest of the `whole` too."""
        counted: dict[datetime, Sums] = defaultdict(Sums)
        for row in self._recorded(matching, column):
            counted[row.at] += sums_of(row)
            yield row.at, label(row.group[0]), sums_of(row)
        if (reached := self.reached) is None:
            return
        sums: dict[datetime, Sums] = defaultdict(Sums)
        for row in whole():
            sums[row.at] += sums_of(row)
        self.reached = reached
        for at, one in sums.items():
            if at <= reached and (left := one.less(counted[at])).requests:
                yield at, rest, left

    def _refused(self) -> Iterator[tuple[datetime, str, Sums]]:
        """Yield the refusals; by endpoint, and by member in the chat, as far as they are kept whole."""
        group, bucket = self.asked.group, self.asked.bucket
        left: dict[datetime, int] = defaultdict(int)
        for at, value, times in refused_by(self.refusals, bucket, "model" if group == "model" else "api_key"):
            key = self.keys.get(value)
            if group == "endpoint" or (group == "member" and value is None):
                left[at] += times
            elif group == "project":
                label = CHAT if value is None else "a project" if key is None else self._label(key.project)
                yield at, label, Sums(refused=times)
            else:
                yield at, self._label(value), Sums(refused=times)
        if not left:
            return
        is_chat = group == "member"
        for at, value, times in kept_by(self.refusals, bucket, "user" if is_chat else "endpoint", is_chat=is_chat):
            left[at] -= times
            yield at, self._person(value) if is_chat else self._label(value), Sums(refused=times)
        rest = CHAT if is_chat else EARLIER
        yield from ((at, rest, Sums(refused=times)) for at, times in left.items() if times > 0)

    def models(self) -> list[str]:
        """Return the models that were used in the range, whatever the filters."""
        asked = self.asked
        rows = usage_by("month", asked.place.tenant.id, asked.since, asked.until, by=("model",))
        return sorted({row.group[0] for row in rows} | ({asked.model} if asked.model else set()))

    @cached_property
    def groups(self) -> dict[str, Sums]:
        """The sums by group, the largest in the measure first."""
        found: dict[str, Sums] = defaultdict(Sums)
        for (_, label), sums in self.cells.items():
            found[label] += sums
        value = _VALUES.get(self.asked.measure, _VALUES["tokens"])
        return dict(sorted(found.items(), key=lambda item: (-value(item[1]), item[0])))

    @cached_property
    def total(self) -> Sums:
        """All sums."""
        return sum(self.groups.values(), Sums())

    def chart(self) -> Chart:
        """Return the measure by bucket and group; a bar leads to its requests. A share is that of all groups."""
        asked = self.asked
        names = {at: _named(at, asked.bucket) for at, _ in asked.starts()}
        spans = {names[at]: (at, end) for at, end in asked.starts()}
        cells: dict[tuple[str, str], int] = defaultdict(int)
        if asked.measure == "cached":
            parts: dict[str, Sums] = defaultdict(Sums)
            for (at, _), sums in self.cells.items():
                parts[names[at]] += sums
            cells |= {
                (name, ""): one.cache_read_tokens * 1000 // one.prompt for name, one in parts.items() if one.prompt
            }
        else:
            short_names = _shortened(self.groups)
            for (at, label), sums in self.cells.items():
                if value := _VALUES[asked.measure](sums):
                    cells[names[at], short_names[label]] += value
        show, axis = _SHOWN.get(asked.measure, (grouped, short))
        title = {"hour": "Hour (UTC)", "day": "Day (UTC)", "month": "Month (UTC)"}[asked.bucket]
        return stacked(
            cells, list(spans), show=show, axis=axis, href=lambda name: asked.requests(*spans[name]), unit=title
        )

    def table(self) -> Table:
        """Return the sums by group; a group's name leads to its requests where the list has a filter for it."""
        asked, whole = self.asked, _VALUES.get(self.asked.measure, _VALUES["credits"])
        columns = [
            Column(GROUPS[asked.group], "name"),
            Column("Credits", "credits"),
            Column("Share", "number"),
            Column("Requests", "number"),
            Column("Input", "number"),
            Column("Cached", "number"),
            Column("Output", "number"),
            Column("Refused", "number"),
        ]
        rows = [
            Row(
                [
                    Cell(label, self._requests_of(label)),
                    sums.charge,
                    share(whole(sums), whole(self.total)),
                    sums.requests,
                    sums.input_tokens,
                    Cell(share(sums.cache_read_tokens, sums.prompt), title=f"{sums.cache_read_tokens:,} tokens"),
                    sums.output_tokens,
                    sums.refused,
                ]
            )
            for label, sums in list(self.groups.items())[:MOST_GROUPS]
        ]
        more = len(self.groups) - len(rows)
        notes = [f"{more} more: the CSV has all of them."] if more else []
        if self.reached is not None:
            notes.append(
                f"Told apart are the newest {MOST_RECORDED:,} requests, since {self.reached:%-d %b, %H:%M} UTC."
            )
        return Table(f"By {GROUPS[asked.group].lower()}", columns, rows, note=" ".join(notes), id="sums")

    def _requests_of(self, label: str) -> str:
        """Return the address of a group's requests; "" where their list can't be narrowed to it."""
        asked = self.asked
        if asked.group == "model":
            return asked.requests(asked.since, asked.until, model=label) if label != _NO_MODEL else ""
        if asked.group == "key":
            found = next((key.id for key in self.keys.values() if key.label == label), None)
            return asked.requests(asked.since, asked.until, api_key=found) if found else ""
        return ""

    def reasons(self) -> Table:
        """Return the reasons of refusals with the last request of each."""
        asked = self.asked
        columns = [
            Column("Reason", "name"),
            Column("Status", "number"),
            Column("Times", "number"),
            Column("Last", "time"),
            Column("Last request", "id"),
        ]
        rows = [
            Row(
                [
                    Cell(line.reason, asked.requests(asked.since, asked.until, measure="refused")),
                    line.status,
                    line.count,
                    Cell(moment(line.last_at), f"/requests/{line.last_request}/{asked.place.query}"),
                    Cell(short_id(line.last_request)),
                ]
            )
            for line in refusals_of(self.refusals)
        ]
        return Table("Refused requests", columns, rows, "Nothing was refused.", id="refusals")


def _shortened(labels: Iterable[str]) -> dict[str, str]:
    """Return the labels as a chart names them: what tells two of them apart stays."""
    found: dict[str, str] = {}
    for label in labels:
        cut = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 11]}…{label[-10:]}"
        found[label] = label if cut in found.values() else cut
    return found


def _named(at: datetime, unit: str) -> str:
    if unit == "hour":
        return f"{at.day} {at:%b, %H:%M}"
    return f"{at.day} {at:%b}" if unit == "day" else f"{at:%b %Y}"


def _per_mille(value: int) -> str:
    return f"{value / 10:g} %"


_SHOWN: dict[str, tuple[Callable[[int], str], Callable[[int], str]]] = {
    "credits": (show_charge, show_credits),
    "cached": (_per_mille, _per_mille),
}


@require_safe
@tenant_page
def usage(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the tenant's usage; nothing here needs a script."""
    asked = asked_of(place, request.GET)
    view = Explored(asked)
    total = view.total
    context = place.context(
        page="usage",
        asked=asked,
        view=view,
        tiles=_tiles(asked, total),
        chart=view.chart(),
        sums=view.table(),
        refusals=view.reasons(),
        is_new=not view.cells and not asked.is_filtered,
        presets=[(name, asked.query(days=days), days == asked.days) for days, name in DAYS.items()],
        measures=[(name, asked.query(measure=one), one == asked.measure) for one, name in MEASURES.items()],
        groups=[(name, asked.query(group=one), one == asked.group) for one, name in GROUPS.items()],
        buckets=[(BUCKETS[one], asked.query(chosen=one), one == asked.bucket) for one in asked.buckets],
        models=view.models(),
        keys=list(view.keys.values())[:MOST_OFFERED],
        members=sorted({(key.email, key.maker) for key in view.keys.values() if key.email}),
        unfiltered=asked.query(api_key=None, model="", project=None, member=None),
        shown=reverse("console-usage-shown") + asked.query(),
        export=reverse("console-usage-export") + asked.query(),
        requests=asked.requests(asked.since, asked.until),
        base_url=request.build_absolute_uri("/v1"),
    )
    return render(request, "console/usage.html", context)


def _tiles(asked: Asked, total: Sums) -> list[Tile]:
    refused = asked.requests(asked.since, asked.until, measure="refused")
    return [
        Tile("Spent", amount(total.charge), f"credits {asked.period}"),
        Tile("Requests", grouped(total.requests), asked.period, asked.requests(asked.since, asked.until, measure="")),
        Tile("Refused", grouped(total.refused), f"error rate {error_rate(total.refused, total.requests)}", refused),
        Tile("Tokens", grouped(total.tokens), f"{grouped(total.output_tokens)} of them written"),
        Tile("Cached", share(total.cache_read_tokens, total.prompt), "of the tokens that were asked"),
        *_promise(asked),
    ]


def _promise(asked: Asked) -> Iterator[Tile]:
    """Yield how the plan's promise was kept, of all usage alone."""
    found = Kept() if asked.is_filtered else kept_in(asked.first, asked.last, asked.place.tenant.id)
    if found.counted:
        note = format_html("of {}; {} credits back", grouped(found.counted), amount(found.credited, is_charge=False))
        yield Tile("Promise kept", share(found.kept, found.counted), note)


@require_safe
@tenant_page
def export(request: HttpRequest, place: Place) -> HttpResponse:
    """Answer the sums by bucket, model, key and project as CSV; credits are exact."""
    asked = asked_of(place, request.GET)
    view = Explored(asked)
    lines = (
        [
            row.at.date().isoformat() if asked.bucket != "hour" else f"{row.at:%Y-%m-%dT%H:%MZ}",
            cell(row.group[0] or ""),
            row.group[1] or "",
            cell(view.keys[row.group[1]].name if row.group[1] in view.keys else "" if row.group[1] else "chat"),
            cell(view.projects.get(row.group[2], "")),
            *_numbers(sums_of(row))[:-1],
        ]
        for row in view.usage("model", "api_key", "project")
    )
    return _csv(asked, "", [asked.bucket, "model", "api_key", "key_name", "project", *_NUMBERS[:-1]], lines)


@require_safe
@tenant_page
def export_shown(request: HttpRequest, place: Place) -> HttpResponse:
    """Answer what the page shows as CSV: each bucket and group that has anything, with every measure."""
    asked = asked_of(place, request.GET)
    view = Explored(asked)
    lines = (
        [f"{at:%Y-%m-%dT%H:%MZ}", cell(label), *_numbers(sums)] for (at, label), sums in sorted(view.cells.items())
    )
    return _csv(asked, f"-by-{asked.group}", ["since", asked.group, *_NUMBERS], lines)


_NUMBERS = ["requests", "input_tokens", "cached_tokens", "output_tokens", "credits", "refused"]


def _numbers(sums: Sums) -> list[int | str]:
    tokens = (sums.input_tokens, sums.cache_read_tokens, sums.output_tokens)
    return [sums.requests, *tokens, format_credits(sums.charge), sums.refused]


def _csv(asked: Asked, what: str, head: Sequence[str], lines: Iterable[Sequence[object]]) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    name = f"usage-{asked.place.tenant.slug}-{asked.first}-{asked.last}{what}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    out = csv.writer(response)
    out.writerow(head)
    out.writerows(lines)
    return response
