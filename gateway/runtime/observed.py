"""Notes of an installation's parts on themselves in the database, and the checks that gateways and doctor share."""

from __future__ import annotations

import importlib.metadata
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.core.signing import BadSignature, Signer

from base import clock
from base.checks import Check, Finding, Result, Severity, command
from base.sealing import SealError, resealed, seal, unseal
from gateway.runtime.models import Observation, TaskState
from gateway.runtime.readiness import DECISIVE, LIMITS, State
from tenancy.services.keys import digest_of, old_digests_of

Kind = Observation.Kind

SEEN_SECONDS = 30.0
"""A gateway notes so often that it serves."""
SILENT = timedelta(seconds=75)
"""After so long without its note a gateway counts as gone."""
STARTING = timedelta(seconds=45)
FORGOTTEN = timedelta(days=1)
LATE = timedelta(minutes=5)


def note(kind: Kind, name: str, facts: Mapping[str, Any]) -> None:
    """Note the latest facts of one part."""
    Observation.objects.update_or_create(kind=kind, name=name, defaults={"facts": facts, "at": clock.now()})


def version() -> str:
    """Return the version of the code that runs, empty where it isn't installed as a package."""
    try:
        return importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class SeenGateway:
    """A gateway as it noted itself: `failing` has text and cure of what its own checks found, `ready` its deployments
    that take work, `unready` why each other takes none.

    One that ended in order is noted no more; one that `is_gone` was killed or lost, and one that `is_starting` may not
    have heard from all yet.
    """

    name: str
    host: str
    version: str
    started_at: datetime
    seen_at: datetime
    is_gone: bool
    is_starting: bool
    failing: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    unready: Mapping[str, str] = field(default_factory=dict)
    ready: frozenset[str] = frozenset()


class Presence:
    """Notes of one gateway that it serves, with its own checks and its deployments' states."""

    def __init__(self, incarnation: UUID) -> None:
        self._name = str(incarnation)
        self._facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "version": version(),
            "started_at": clock.now().isoformat(),
        }
        self._noted: tuple[dict[str, Any], float] = ({}, 0.0)

    def look(self, state: State, deployments: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
        """Note how the gateway is, and return each check's severity and whether it is fine: its own, and those of the
        periodic work as they were noted.
        """
        own = [Result(check, check.findings(state)) for check in (*DECISIVE, LIMITS)]
        own += [Result(check, check.findings(None)) for check in (SECRETS, TASKS)]
        failing = {
            one.check.name: [(found.text, found.mend) for found in one.findings if not found.is_fine]
            for one in own
            if not one.is_fine
        }
        facts = {**self._facts, "failing": failing, "deployments": dict(deployments)}
        if facts != self._noted[0] or time.monotonic() >= self._noted[1] + SEEN_SECONDS:
            note(Kind.GATEWAY, self._name, facts)
            Observation.objects.filter(kind=Kind.GATEWAY, at__lt=clock.now() - FORGOTTEN).delete()
            self._noted = (facts, time.monotonic())
        found = {one.name: (one.severity, one.is_fine) for one in noted_results()}
        for one in own:
            _, is_fine = found.get(one.check.name, ("", True))
            found[one.check.name] = (str(one.check.severity), is_fine and one.is_fine)
        return found

    def forget(self) -> None:
        """Forget a gateway that ends in order."""
        Observation.objects.filter(kind=Kind.GATEWAY, name=self._name).delete()


def seen_gateways() -> list[SeenGateway]:
    """Return the gateways of this database that serve, and those of the last day that ended in no order."""
    now = clock.now()
    return [
        SeenGateway(
            name=f"{row.facts['host']} {row.name[-6:]}",
            host=row.facts["host"],
            version=row.facts["version"],
            started_at=datetime.fromisoformat(row.facts["started_at"]),
            seen_at=row.at,
            is_gone=row.at < now - SILENT,
            is_starting=datetime.fromisoformat(row.facts["started_at"]) > now - STARTING,
            failing=row.facts["failing"],
            unready={name: state for name, state in row.facts["deployments"].items() if state != "ready"},
            ready=frozenset(name for name, state in row.facts["deployments"].items() if state == "ready"),
        )
        for row in Observation.objects.filter(kind=Kind.GATEWAY)
    ]


class NotedFinding(msgspec.Struct, frozen=True):
    """A finding of a check as its row has it; one to mend has been there `since`."""

    text: str
    mend: str = ""
    subject: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class NotedResult:
    """The last result of one check of the periodic work."""

    name: str
    severity: str
    is_fine: bool
    findings: tuple[NotedFinding, ...]
    at: datetime
    proves: str = ""
    hits: str = ""

    @property
    def failing(self) -> list[NotedFinding]:
        """The findings that are to be mended."""
        return [one for one in self.findings if one.mend]


def note_result(result: Result) -> None:
    """Note what a check found, each finding to mend with when its subject was first found so; a check that lacks its
    ground has no result of its own.
    """
    check = result.check
    earlier = Observation.objects.filter(kind=Kind.CHECK, name=check.name).first()
    if result.lacks:
        if earlier is not None:
            earlier.delete()
        return
    before = () if earlier is None else msgspec.convert(earlier.facts["findings"], list[NotedFinding])
    since = {one.subject: one.since for one in before if one.mend and one.since is not None}
    now = clock.now()
    findings = [
        NotedFinding(one.text, one.mend, one.subject, None if one.is_fine else since.get(one.subject, now))
        for one in result.findings
    ]
    facts = {
        "severity": check.severity,
        "is_fine": result.is_fine,
        "every_s": check.every_s,
        "proves": check.proves,
        "hits": check.hits,
        "findings": msgspec.to_builtins(findings),
    }
    note(Kind.CHECK, check.name, facts)


def noted_results() -> list[NotedResult]:
    """Return the last result of each check of the periodic work, without those that are too old to tell of today."""
    now = clock.now()
    return [
        NotedResult(
            name=row.name,
            severity=row.facts["severity"],
            is_fine=row.facts["is_fine"],
            findings=tuple(msgspec.convert(row.facts["findings"], list[NotedFinding])),
            at=row.at,
            proves=row.facts.get("proves", ""),
            hits=row.facts.get("hits", ""),
        )
        for row in Observation.objects.filter(kind=Kind.CHECK)
        if row.at > now - LATE - timedelta(seconds=2 * row.facts["every_s"])
    ]


def ask_for(task: str) -> None:
    """Ask the periodic work to do a task now instead of when it is due; it does so within seconds, where it runs."""
    TaskState.objects.update_or_create(name=task, defaults={"asked_at": clock.now()})


def take_asked() -> str:
    """Return the task that was asked for first, which the caller then does; empty where none is."""
    asked = TaskState.objects.exclude(asked_at=None).order_by("asked_at").values_list("name", "asked_at")
    for name, at in asked:
        if TaskState.objects.filter(name=name, asked_at=at).update(asked_at=None):
            return str(name)
    return ""


def _tasks(_: object) -> Iterator[Finding]:
    """Find tasks that are late or fail; a sweep that never ran has no row, so the oldest success of all tells of it."""
    rows = list(TaskState.objects.all())
    run = f"run {command('jobs')} (or `serve`, or Celery), or {command('jobs', '--once')} by cron (docs/jobs.md)"
    late = clock.now() - LATE
    done = [row.succeeded_at for row in rows if row.succeeded_at is not None]
    if done and max(done) < late:
        yield Finding(f"no task has succeeded since {max(done):%Y-%m-%d %H:%M} UTC", run)
        return
    for row in rows:
        if row.failures >= 3:
            mend = f"{command('jobs', '--once')} tries it at once and shows its traceback"
            yield Finding(f"failed {row.failures} times in a row: {row.error}", mend, row.name)
        elif row.succeeded_at is not None and row.succeeded_at < late - LATE:
            yield Finding(f"has not succeeded since {row.succeeded_at:%Y-%m-%d %H:%M} UTC", run, row.name)


TASKS: Check[object] = Check(
    "periodic work",
    "each periodic task succeeded within its time",
    Severity.CRITICAL,
    _tasks,
    needs=("schema",),
    hits="Monthly credit, mail, batches, sums and clean-up come late.",
)


@dataclass(frozen=True, slots=True)
class _Secret:
    """A secret whose change ends something: `make` seals a canary with it, `opens` says whether it or one of its
    fallbacks opens that, and `renewed` is the same canary under today's.
    """

    variable: str
    fallbacks: str
    protects: str
    make: Callable[[], str]
    opens: Callable[[str], bool]
    renewed: Callable[[str], str]


def _signs(canary: str) -> bool:
    try:
        return _signer().unsign(canary) == _CANARY
    except BadSignature:
        return False


def _signer() -> Signer:
    return Signer(key=settings.SECRET_KEY, fallback_keys=[*settings.SECRET_KEY_FALLBACKS], salt="sluice.canary")


def _unseals(canary: str) -> bool:
    try:
        return unseal(canary) == _CANARY
    except SealError:
        return False


_CANARY = "canary"
_SECRETS = (
    _Secret(
        "SLUICE_SECRET_KEY",
        "SLUICE_SECRET_KEY_FALLBACKS",
        "sessions and links",
        lambda: _signer().sign(_CANARY),
        _signs,
        lambda _: _signer().sign(_CANARY),
    ),
    _Secret(
        "SLUICE_KEY_HASH_SECRET",
        "SLUICE_KEY_HASH_FALLBACKS",
        "API keys",
        lambda: digest_of(_CANARY),
        lambda canary: canary in {digest_of(_CANARY), *old_digests_of(_CANARY)},
        lambda _: digest_of(_CANARY),
    ),
    _Secret(
        "SLUICE_CREDENTIAL_SECRET",
        "SLUICE_CREDENTIAL_FALLBACKS",
        "API keys of remote engines, waiting mail and kept answers",
        lambda: seal(_CANARY),
        _unseals,
        resealed,
    ),
)


def _secrets(_: object) -> Iterator[Finding]:
    canaries = dict(Observation.objects.filter(kind=Kind.SECRET).values_list("name", "facts"))
    for secret in _SECRETS:
        if secret.variable not in canaries:
            continue
        if not secret.opens(canaries[secret.variable]["canary"]):
            mend = (
                f"put the former value into {secret.fallbacks} and restart; if it is lost,"
                f" {command('doctor', '--accept-secrets')} goes on with this one, and what it protected is lost"
            )
            text = f"opens nothing that was made under the former one: {secret.protects}"
            yield Finding(text, mend, secret.variable)


def leave_canaries(*, anew: bool = False) -> None:
    """Leave a canary under each secret that has none, or has one that a fallback opens; with `anew` under all."""
    canaries = dict(Observation.objects.filter(kind=Kind.SECRET).values_list("name", "facts"))
    for secret in _SECRETS:
        canary = canaries.get(secret.variable, {}).get("canary", "")
        if anew or not canary:
            note(Kind.SECRET, secret.variable, {"canary": secret.make()})
        elif secret.opens(canary) and (renewed := secret.renewed(canary)) != canary:
            note(Kind.SECRET, secret.variable, {"canary": renewed})


SECRETS: Check[object] = Check(
    "secrets",
    "a canary sealed with each secret is opened by it",
    Severity.CRITICAL,
    _secrets,
    needs=("schema",),
    hits="What the secret protects is lost: keys, sessions, or stored credentials.",
)
