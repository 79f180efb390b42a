"""The installation's upkeep: periodic jobs, checks, books, mail, backups, gateways, settings, versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import django
from django.conf import settings
from django.contrib import messages
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.views.decorators.http import require_POST, require_safe

from billing.selectors.reconciliation import last_whole
from control.operate.base import Desk, back, live_page, operator_page, with_commands
from control.operate.now import books
from control.screens.figures import grouped, short_id
from control.screens.tables import Button, Cell, Column, Row, State, Table
from gateway.runtime.models import Observation, TaskState
from gateway.runtime.observed import LATE, NotedResult, SeenGateway, ask_for, noted_results, seen_gateways
from gateway.runtime.observed import version as own_version
from tenancy.audit.trail import record
from tenancy.models import OutgoingMail
from tenancy.services.mail import send_failed_mail

BOOKS, ALL_BOOKS, CHECKS = "billing.reconciliation", "billing.reconciliation.whole", "operation.checks"
JOBS = {
    "billing.monthly_grants": ("Monthly credit", "begins the month of each subscription"),
    "billing.recurring_grants": ("Recurring grants", "schedules the next one of each"),
    "billing.expiry": ("Expiry", "books what has expired of grants"),
    "billing.rollups": ("Sums of usage", "adds requests to the sums that pages show"),
    "billing.key_totals": ("Keys’ totals", "adds up what each key was charged in months that are over"),
    BOOKS: ("Books", "checks the rows of credit that are new"),
    "billing.seals": ("Seals", "seals what was booked on each day, and makes statements"),
    "billing.reratings": ("Re-ratings", "rates requests anew by other prices"),
    "billing.promises": ("Promises", "gives back what requests missed of their plan’s promise"),
    "billing.key_budgets": ("Keys’ budgets", "takes over what the release before counted in them"),
    "billing.plan_moves": ("Moves to a plan", "moves tenants whose plan is to be another"),
    "fleet.fetches": ("Models, fetched", "brings models to this machine"),
    "gateway.mail": ("Mail", "sends what waits"),
    "gateway.hooks": ("Web-hooks", "tells them of alerts"),
    "gateway.purge": ("Clean-up", "deletes what has ended"),
    "gateway.responses": ("Lost responses", "lets background responses of dead gateways fail"),
    "gateway.files": ("Files", "removes files that have expired"),
    "gateway.adapters": ("Adapters", "removes tensors that belong to none"),
    "gateway.batch_input": ("Batches, read", "checks the lines of new batches"),
    "gateway.batch_output": ("Batches, written", "ends batches and writes their files"),
    CHECKS: ("Checks", "makes all checks and notes what they found"),
    "operation.alerts": ("Alerts", "tells of troubles that last or are over"),
    "operation.asked": ("Run now", "does what this page asks for"),
}
"""The periodic jobs' names and what they do, in words (docs/jobs.md has more)."""
ON_DEMAND = {ALL_BOOKS: ("Books, all of them", "checks all rows of credit against each other")}
FEW = 10  # rows of mail and backups that are shown
SHOWN = {
    "Serving": (
        *("SLUICE_ENV", "SLUICE_HOME", "SLUICE_BASE_URL", "ALLOWED_HOSTS", "SLUICE_DATA_PLANE", "SLUICE_METRICS_PORT"),
        *("SLUICE_TRUST_PROXY", "SLUICE_PROXIES", "SLUICE_DRAIN_SECONDS", "SLUICE_CORS_ORIGINS", "SLUICE_SIGNUP_PLAN"),
    ),
    "Requests": (
        *("SLUICE_QUEUE_SECONDS", "SLUICE_QUEUE_LENGTH", "SLUICE_ENGINE_QUEUE_SECONDS", "SLUICE_MAX_BODY_BYTES"),
        *("SLUICE_MAX_CONNECTIONS", "SLUICE_BATCH_CONCURRENCY", "SLUICE_TASKS", "SLUICE_EXAMPLES_MODEL"),
        *("SLUICE_REMOTE_NETWORKS", "SLUICE_DESK"),
    ),
    "Kept for": (
        *("SLUICE_REFUSAL_DAYS", "SLUICE_RESPONSE_DAYS", "SLUICE_FILE_DAYS", "SLUICE_BATCH_DAYS", "SLUICE_MAIL_DAYS"),
        *("SLUICE_INVITATION_DAYS", "SLUICE_RECONCILIATION_DAYS", "SLUICE_AUDIT_DAYS"),
    ),
    "Work": (
        *("SLUICE_RECONCILE_HOURS", "SLUICE_RECONCILE_WHOLE_DAYS", "SLUICE_BACKUP_HOURS", "SLUICE_CELERY_CONCURRENCY"),
        "SLUICE_MOST_KEYS",
        *("SLUICE_MOST_FILES", "SLUICE_MAX_FILE_BYTES", "EMAIL_HOST", "EMAIL_PORT", "DEFAULT_FROM_EMAIL"),
        *("SLUICE_SUPPORT_CONTACT", "REDIS_URL", "OTEL_EXPORTER_OTLP_ENDPOINT", "SLUICE_TRACE_SHARE"),
    ),
}
"""The settings that the page shows, by name: a new one isn't shown before it is listed, so that no secret ever is."""


@require_safe
@operator_page("routing.view_deployment")
def system(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show how all of it is; jobs and checks poll."""
    results = noted_results()
    token = get_token(request)
    may_run = desk.may("gateway.change_taskstate")
    context = desk.context(
        page="system",
        may_run=may_run,
        jobs=_jobs(may_run, token),
        checks=_checks(results),
        checked_at=max((one.at for one in results), default=None),
        gateways=_gateways(seen_gateways()),
        backups=_backups(),
        backup=next((one for one in results if one.name == "backup"), None),
        token=token,
        settings=[(name, list(_settings(names))) for name, names in SHOWN.items()],
        versions=_versions(results),
    )
    if desk.may("billing.view_reconciliation"):
        last, running = books()
        findings = [
            Row([one["check"].replace("_", " "), short_id(one["subject"]), one["detail"]])
            for one in ([] if last is None else last.findings[:FEW])
        ]
        columns = [Column("Check", "name"), Column("Row"), Column("What differs", "wraps")]
        context |= {
            "books": last,
            "running": running,
            "whole": last_whole(),
            "shows_books": True,
            "may_check": desk.may("billing.add_reconciliation"),
            "findings": Table("What the books contradict", columns, findings, "Nothing.") if findings else None,
        }
    if desk.may("gateway.view_outgoingmail"):
        context |= _mail(desk.may("gateway.change_outgoingmail"), token)
    return live_page(request, "system", context)


@require_POST
@operator_page()
def run(request: HttpRequest, desk: Desk, task: str) -> HttpResponse:
    """Ask the periodic work for a task now."""
    if task not in JOBS | ON_DEMAND:
        raise Http404
    if not desk.may("billing.add_reconciliation" if task in {BOOKS, ALL_BOOKS} else "gateway.change_taskstate"):
        raise Http404
    ask_for(task)
    record("job.asked", TaskState(name=task))
    name, _ = (JOBS | ON_DEMAND)[task]
    messages.success(request, f"Asked for: {name}. The periodic work does it within seconds, where it runs.")
    return redirect(back(request, "operate-system"))


@require_POST
@operator_page("gateway.change_outgoingmail")
def retry_mail(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Let mail that was given up be tried again: all of it, or the one whose id is sent."""
    try:
        pk = UUID(request.GET["mail"]) if "mail" in request.GET else None
    except ValueError as error:
        raise Http404 from error
    number = send_failed_mail(pk)
    if number:
        messages.success(request, f"{number} mail{'' if number == 1 else 's'} will be tried again within seconds.")
    else:
        messages.error(
            request, "None can be tried again: no secret of today opens their text. See SLUICE_CREDENTIAL_FALLBACKS."
        )
    return redirect(f"{reverse('operate-system')}#mail")


def _jobs(may_run: bool, token: str) -> Table:
    """Return the jobs, those that fail first; one that never ran has no row and is shown all the same."""
    rows = {one.name: one for one in TaskState.objects.all()}
    names = sorted(
        {*JOBS, *rows} - {*ON_DEMAND}, key=lambda name: (not (name in rows and rows[name].failures), _words(name))
    )
    columns = [
        *(Column("Job", "name"), Column("State", "state"), Column("Last success", "time"), Column("Took", "duration")),
        *(Column("Failures since", "number"), Column("Why", "wraps")),
        *([Column("Action", "buttons", is_hidden=True)] if may_run else []),
    ]
    lines = []
    for name in names:
        row = rows.get(name) or TaskState(name=name)
        title, does = _words(name), JOBS.get(name, ("", ""))[1]
        took = row.seconds * 1000 if row.succeeded_at else None
        asked = (
            []
            if name == "operation.asked"
            else [Button("Run now", reverse("operate-run", args=[name]), title, post=True)]
        )
        values = [Cell(title, detail=does), _state(row), row.succeeded_at, took, row.failures or "", row.error]
        lines.append(Row([*values, asked] if may_run else values))
    return Table("Periodic jobs", columns, lines, id="jobs", csrf=token)


def _words(name: str) -> str:
    return JOBS.get(name, (name, ""))[0]


def _state(row: TaskState) -> State:
    if row.asked_at is not None:
        return State("asked for")
    if row.failures:
        return State("failing", "bad" if row.failures >= 3 else "warn")
    if row.succeeded_at is None:
        return State("never ran", "warn")
    return State("late", "bad") if row.succeeded_at < timezone.now() - 2 * LATE else State("fine", "good")


def _checks(results: Iterable[NotedResult]) -> Table:
    """Return all checks as the doctor has them: those that fail first, each with its cure."""
    ordered = sorted(results, key=lambda one: (one.is_fine, one.severity, one.name))
    lines = []
    for one in ordered:
        tone = "bad" if one.severity == "critical" else "warn"
        state = State("fine", "good") if one.is_fine else State(one.severity, tone)
        told = [": ".join(filter(None, (finding.subject, finding.text))) for finding in one.findings]
        cures = [with_commands(finding.mend) for finding in one.failing]
        found = format_html_join("", "<p>{}</p>", ((text,) for text in told[:FEW])) or "Nothing to tell."
        cure = format_html_join("", "<p>{}</p>", ((text,) for text in cures))
        lines.append(Row([Cell(one.name, detail=one.proves), state, found, cure, _since(one)]))
    columns = [
        *(Column("Check", "name"), Column("State", "state"), Column("What was found", "wraps")),
        *(Column("What to do", "wraps"), Column("Since", "time")),
    ]
    empty = "No check has told anything lately: the periodic work doesn’t run. Start manage.py serve or jobs."
    return Table("Checks", columns, lines, empty, id="checks")


def _since(result: NotedResult) -> datetime | None:
    return min((one.since for one in result.failing if one.since is not None), default=None)


def _gateways(seen: Iterable[SeenGateway]) -> Table:
    lines = []
    for one in sorted(seen, key=lambda gateway: (gateway.is_gone, gateway.name)):
        if one.is_gone:
            state = State("gone", "warn")
        elif one.is_starting:
            state = State("starting")
        else:
            state = State("failing", "bad", ", ".join(one.failing)) if one.failing else State("serving", "good")
        models = f"{len(one.ready)} of {len(one.ready) + len(one.unready)}"
        lines.append(
            Row([one.name, state, one.version or "–", models, one.started_at, one.seen_at], is_over=one.is_gone)
        )
    columns = [
        *(
            Column("Gateway", "name"),
            Column("State", "state"),
            Column("Version"),
            Column("Deployments ready", "number"),
        ),
        *(Column("Started", "time"), Column("Seen", "time")),
    ]
    return Table("Gateways", columns, lines, "No gateway has said that it serves.", id="gateways")


def _backups() -> Table:
    rows = Observation.objects.filter(kind=Observation.Kind.BACKUP).order_by("-at")[:FEW]
    lines = [
        Row([Cell(one.name, detail=str(Path(one.facts["path"]).parent)), one.at, f"{one.facts['bytes'] / 2**20:,.1f}"])
        for one in rows
    ]
    columns = [Column("Archive", "name"), Column("Made", "time"), Column("MiB", "number")]
    return Table("Backups", columns, lines, "None was made on this installation.", id="backups")


def _mail(may_retry: bool, token: str) -> dict[str, Any]:
    states = OutgoingMail.State
    week = timezone.now() - timedelta(days=7)
    failed = list(OutgoingMail.objects.filter(state=states.FAILED, ended_at__gt=week).order_by("-ended_at")[: FEW + 1])
    waiting = OutgoingMail.objects.filter(state=states.WAITING)
    queued = list(waiting.order_by("is_notice", "next_attempt_at")[:FEW])
    lines = []
    for one in (*failed[:FEW], *queued):
        given_up = one.state == states.FAILED
        state = (
            State("given up", "bad") if given_up else State("tried again", "warn") if one.attempts else State("waiting")
        )
        again = [Button("Try again", f"{reverse('operate-mail')}?mail={one.pk}", f"the mail to {one.to}", post=True)]
        values = [Cell(one.to, detail=one.subject), state, one.attempts, one.error, one.ended_at or one.next_attempt_at]
        lines.append(Row([*values, again if given_up and one.sealed_text else []] if may_retry else values))
    columns = [
        *(Column("To", "name"), Column("State", "state"), Column("Attempts", "number"), Column("Why", "wraps")),
        *(Column("Ended, or next", "time"), *([Column("Action", "buttons", is_hidden=True)] if may_retry else [])),
    ]
    note = f"The latest {FEW} of those that were given up within a week." if len(failed) > FEW else ""
    table = Table(
        "Outgoing mail",
        columns,
        lines,
        "None waits, and none was given up within a week.",
        note=note,
        id="mail",
        csrf=token,
    )
    return {
        "mail": table,
        "waiting": waiting.count() if len(queued) == FEW else len(queued),
        "failed": failed,
        "may_retry": may_retry,
    }


def _settings(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        yield name, _shown(getattr(settings, name, ""))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int):
        return grouped(value)
    text = "" if value is None else str(value)
    return _without_credentials(text) if "://" in text else text or "not set"


def _without_credentials(address: str) -> str:
    """Return an address without user, password and query, all of which may be secrets."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"…@{host}" if "@" in parts.netloc else host, query="", fragment="").geturl()


def _versions(results: Iterable[NotedResult]) -> list[tuple[str, str]]:
    applied: dict[str, str] = {}
    for app, name in MigrationRecorder.Migration.objects.order_by("id").values_list("app", "name"):
        if app in {"gateway", "billing", "routing"}:
            applied[app] = name.partition("_")[0]
    redis = next((finding.text for one in results if one.name == "redis" for finding in one.findings), "not used")
    return [
        ("Sluice", own_version() or "not installed as a package"),
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        ("torch", _installed("torch")),
        (connection.display_name, _of_database()),
        ("Redis", redis.partition(" answers")[0] if settings.REDIS_URL else "not used"),
        ("Schema", ", ".join(f"{app} {number}" for app, number in sorted(applied.items()))),
    ]


def _of_database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version" if connection.vendor == "postgresql" else "SELECT sqlite_version()")
        return str(cursor.fetchone()[0])


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed here"
