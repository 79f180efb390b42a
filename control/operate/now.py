"""The present state of the installation, and the failures that need somebody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify
from django.views.decorators.http import require_safe

from base.checks import Severity
from billing.models import Reconciliation
from billing.selectors.usage import MOST_RECENT, Recent, recent_of_all
from control.operate.base import Desk, address_of, live_page, operator_page, with_commands
from control.screens.charts import spark
from control.screens.figures import duration, grouped, moment, share
from control.screens.tables import State
from gateway.runtime.data_plane import DeploymentState, live_of
from gateway.runtime.models import RefusalCount, TaskState
from gateway.runtime.observed import LATE, NotedResult, noted_results, seen_gateways
from routing.models import Deployment
from tenancy.models import OutgoingMail

HOUR = timedelta(hours=1)
BUCKETS = 12  # of a sparkline of an hour
SLOW_MS, TOO_SLOW_MS = 3_000, 10_000
"""A first token that 95 of 100 requests have within the first is fine, beyond the second it is a failure."""
FULL, TOO_FULL = 0.85, 0.97  # shares of K/V memory held by requests: beyond them requests wait, and lose their place

PAGES = {
    **dict.fromkeys(("models", "remote engines", "nodes", "gateway", "gateways", "data plane"), "operate-engines"),
    **dict.fromkeys(("auto", "aliases"), "operate-routing"),
    "plans and prices": "operate-plans",
    "API keys": "operate-tenants",
}
"""The page on which a failing check is mended; of all others System, which has jobs, mail, books and backups."""


@dataclass(frozen=True, slots=True)
class Light:
    """A state of the strip: its word and colour, its figure with the period, a series, and its page."""

    name: str
    state: State
    figure: Any
    note: Any = ""
    href: str = ""
    spark: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """A failure: its name, its beginning, the people that it hits, the remedy, and the page for that."""

    severity: State
    name: str
    about: str
    text: str
    since: datetime | None
    hits: str
    mend: SafeString
    href: str
    page: str

    @property
    def id(self) -> str:
        """A name for its place on the page, so that the focus finds it again after a poll."""
        return slugify(f"{self.name} {self.about}")


@require_safe
@operator_page()
def now(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the strip of states, and what the checks found that somebody has to mend, the worst first."""
    results = noted_results() if desk.may("routing.view_deployment") else []
    context = desk.context(
        page="now",
        lights=list(_lights(request, desk)),
        needs=list(needs_of(results)),
        checked_at=max((one.at for one in results), default=None),
        sees_checks=desk.may("routing.view_deployment"),
        may_look=desk.may("gateway.change_taskstate"),
        may_check=desk.may("billing.add_reconciliation"),
    )
    return live_page(request, "now", context)


def needs_of(results: Sequence[NotedResult]) -> Iterator[Need]:
    """Yield the failures, the worst first, then the oldest."""
    failing = [(one, finding) for one in results for finding in one.failing]
    failing.sort(key=lambda pair: (pair[0].severity, pair[1].since or pair[0].at))
    for one, finding in failing:
        page = PAGES.get(one.name, "operate-system")
        yield Need(
            State(one.severity, "bad" if one.severity == Severity.CRITICAL else "warn"),
            one.name[:1].upper() + one.name[1:],
            finding.subject,
            finding.text,
            finding.since,
            one.hits,
            with_commands(finding.mend),
            address_of(page) + ("#" + one.name if page == "operate-system" and one.name in {"mail", "books"} else ""),
            page.removeprefix("operate-").capitalize(),
        )


def _lights(request: HttpRequest, desk: Desk) -> Iterator[Light]:
    since = timezone.now() - HOUR
    recent = recent_of_all(since) if desk.may("billing.view_usagerecord") else []
    if desk.may("routing.view_deployment"):
        states = live_of(request).deployment_states()
        yield _engines(states)
        yield _gateways()
    if desk.may("billing.view_usagerecord") and desk.may("gateway.view_refusalcount"):
        yield _errors(recent, since)
        yield _first_tokens(recent, since)
    if desk.may("routing.view_deployment"):
        yield _queue(states)
        yield _memory(states)
    if desk.may("gateway.view_taskstate"):
        yield _jobs()
    if desk.may("billing.view_reconciliation"):
        yield _books()
    if desk.may("gateway.view_outgoingmail"):
        yield _mail()


_UNKNOWN = State("unknown", "warn")
SILENT = "no gateway answers this page"


def _engines(states: Mapping[UUID, DeploymentState] | None) -> Light:
    rows = list(Deployment.objects.filter(is_active=True, model__is_active=True).values_list("pk", "model"))
    href = address_of("operate-engines")
    if not rows:
        return Light("Engines", State("none", "bad"), "0", "no model is served", href)
    if states is None:
        return Light("Engines", _UNKNOWN, f"– of {len(rows)}", SILENT, href)
    ready = [model for pk, model in rows if pk in states and states[pk].is_ready]
    lost = {model for _, model in rows} - set(ready)
    state = State("down", "bad") if lost else State("degraded", "warn") if len(ready) < len(rows) else _fine("ready")
    note = f"{len(lost)} model{_s(len(lost))} not served now" if lost else "deployments ready now"
    return Light("Engines", state, f"{len(ready)} of {len(rows)}", note, href)


def _gateways() -> Light:
    seen = seen_gateways()
    alive = [one for one in seen if not one.is_gone]
    ill = [one for one in alive if one.failing and not one.is_starting]
    lost = [one for one in seen if one.is_gone and one.seen_at > timezone.now() - HOUR]
    href = address_of("operate-system") + "#gateways"
    if not alive:
        return Light("Gateways", State("none", "bad"), "0", "none has said that it serves", href)
    if ill:
        return Light("Gateways", State("failing", "bad"), grouped(len(alive)), f"{len(ill)} fails checks now", href)
    note = f"{len(lost)} lost within an hour" if lost else "serving now"
    return Light("Gateways", State("lost some", "warn") if lost else _fine("serving"), grouped(len(alive)), note, href)


def _errors(recent: Sequence[Recent], since: datetime) -> Light:
    counts = RefusalCount.objects.filter(minute__gte=since, status__gte=500).order_by("minute")
    refused = list(counts.values_list("minute").annotate(sum=Sum("count")))
    broke = [(one.at, 1) for one in recent if one.broke]
    number = sum(count for _, count in (*refused, *broke))
    asked = len(recent) + sum(count for _, count in refused)
    part = number / asked if asked else 0.0
    state = _fine("none") if not number else State("some", "warn") if part < 0.01 else State("many", "bad")
    many = f"{grouped(asked)}+" if len(recent) == MOST_RECENT else grouped(asked)
    note = f"{share(number, asked)} of {many} requests in an hour" if asked else "no requests in an hour"
    href = address_of("operate-requests", state="5xx", hours=1)
    return Light("Errors of ours", state, grouped(number), note, href, spark(_buckets((*refused, *broke), since)))


def _first_tokens(recent: Sequence[Recent], since: datetime) -> Light:
    timed = [(one.at, one.ttft_ms) for one in recent if one.ttft_ms is not None]
    href = address_of("operate-requests", hours=1)
    if not timed:
        return Light("First token", State("no requests"), "–", "in an hour", href)
    half, most = percentile([ms for _, ms in timed], 50), percentile([ms for _, ms in timed], 95)
    state = (
        State("too slow", "bad") if most > TOO_SLOW_MS else State("slow", "warn") if most > SLOW_MS else _fine("fast")
    )
    note = f"half, and 95 % of {grouped(len(timed))} in an hour"
    return Light("First token", state, f"{duration(half)} / {duration(most)}", note, href, sparkline(timed, since))


def _queue(states: Mapping[UUID, DeploymentState] | None) -> Light:
    href = address_of("operate-engines")
    if states is None:
        return Light("Queue", _UNKNOWN, "–", SILENT, href)
    waiting = sum(one.waiting for one in states.values())
    running = sum(one.running for one in states.values())
    state = _fine("flowing") if not waiting else State("stuck", "bad") if not running else State("waiting", "warn")
    return Light("Queue", state, f"{grouped(waiting)} waiting", f"{grouped(running)} running now", href)


def _memory(states: Mapping[UUID, DeploymentState] | None) -> Light:
    href = address_of("operate-engines")
    if states is None:
        return Light("K/V memory", _UNKNOWN, "–", SILENT, href)
    own = [one for one in states.values() if one.work is not None or one.kv_used or one.kv_cached]
    if not own:
        return Light("K/V memory", State("not told"), "–", "no engine of ours runs", href)
    fullest = max(own, key=lambda one: one.kv_used)
    used = fullest.kv_used
    state = State("full", "bad") if used > TOO_FULL else State("nearly full", "warn") if used > FULL else _fine("free")
    note = f"held at the fullest engine now; {fullest.kv_cached:.0%} more keeps prompts"
    return Light("K/V memory", state, f"{used:.0%}", note, href)


def _jobs() -> Light:
    rows = list(TaskState.objects.all())
    last = max((one.succeeded_at for one in rows if one.succeeded_at is not None), default=None)
    failing = [one for one in rows if one.failures]
    href = address_of("operate-system") + "#jobs"
    if last is None or last < timezone.now() - LATE:
        ended = format_html("last done {}", moment(last, "never"))
        return Light("Jobs", State("not running", "bad"), grouped(len(rows)), ended, href)
    if failing:
        bad = any(one.failures >= 3 for one in failing)
        note = f"of {len(rows)} fail{'s' if len(failing) == 1 else ''} since the last success"
        return Light("Jobs", State("failing", "bad" if bad else "warn"), grouped(len(failing)), note, href)
    return Light("Jobs", _fine("running"), grouped(len(rows)), "periodic tasks, none failing", href)


def _books() -> Light:
    last, running = books()
    href = address_of("operate-system") + "#books"
    if last is None or last.finished_at is None:
        return Light("Books", State("checking" if running else "not checked", "warn"), "–", "never checked", href)
    note = format_html("checked {}", moment(last.finished_at))
    if last.found:
        return Light("Books", State("contradict", "bad"), f"{grouped(last.found)} finding{_s(last.found)}", note, href)
    if running:
        return Light("Books", State("checking"), "0 findings", note, href)
    is_old = last.finished_at < timezone.now() - timedelta(hours=2 * settings.SLUICE_RECONCILE_HOURS)
    return Light("Books", State("old", "warn") if is_old else _fine("in order"), "0 findings", note, href)


def books() -> tuple[Reconciliation | None, Reconciliation | None]:
    """Return the last check of the books that ended, and the one that runs."""
    rows = list(Reconciliation.objects.order_by("-id")[:2])
    ended = [one for one in rows if one.finished_at is not None]
    return (ended[0] if ended else None), next((one for one in rows if one.is_running), None)


def _mail() -> Light:
    states = OutgoingMail.State
    waiting = OutgoingMail.objects.filter(state=states.WAITING)
    tried = waiting.filter(attempts__gt=0).exists()
    failed = OutgoingMail.objects.filter(state=states.FAILED, ended_at__gt=timezone.now() - timedelta(days=1)).count()
    href = address_of("operate-system") + "#mail"
    state = State("given up", "bad") if failed else State("tried again", "warn") if tried else _fine("sent")
    return Light(
        "Mail", state, f"{grouped(failed)} given up", f"in a day; {grouped(waiting.count())} waiting now", href
    )


def percentile(values: Sequence[int], part: int) -> int:
    """Return the least value that at least `part` of a hundred don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * part / 100) - 1)]


def sparkline(timed: Sequence[tuple[datetime, int]], since: datetime) -> str:
    """Return the line of the halves of an hour's milliseconds, five minutes a point; empty without two points."""
    lists: list[list[int]] = [[] for _ in range(BUCKETS)]
    for at, ms in timed:
        lists[_bucket(at, since)].append(ms)
    return spark([percentile(one, 50) if one else 0 for one in lists]) if sum(map(bool, lists)) > 1 else ""


def _buckets(counts: Sequence[tuple[datetime, int]], since: datetime) -> list[int]:
    found = [0] * BUCKETS
    for at, count in counts:
        found[_bucket(at, since)] += count
    return found


def _bucket(at: datetime, since: datetime) -> int:
    return min(BUCKETS - 1, max(0, int((at - since) / (HOUR / BUCKETS))))


def _fine(word: str) -> State:
    return State(word, "good")


def _s(number: int) -> str:
    return "" if number == 1 else "s"
