"""The checks that decide whether a gateway takes requests (``/readyz``), and what else it checks of itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.db import connection
from django.utils.crypto import salted_hmac

from base.checks import Check, Finding, Severity, command
from base.database.threads import DatabaseThreads
from base.home import is_disk_full
from billing import triggers
from gateway.runtime import epoch_triggers

WRITER_BEHIND_SECONDS = 5.0
LOOK_SECONDS = 1.0  # how long the database may take, and how long its answer is cached
TOLD_SECONDS = 5.0  # for so long a check may fail before the log tells so

log = structlog.get_logger(__name__)


def missing_triggers() -> list[str]:
    """Return the names of missing triggers, on which append-only tables and the catalogue epoch depend."""
    return [*triggers.missing(connection), *epoch_triggers.missing()]


def _triggers(_: object) -> Iterator[Finding]:
    if missing := missing_triggers():
        yield Finding(f"missing: {', '.join(missing)}", f"{command('setup')} installs them anew")


def _disk(_: object) -> Iterator[Finding]:
    if is_disk_full():
        yield Finding("nearly full", f"make room: `du -xh -d 2 {settings.SLUICE_HOME} | sort -h` shows what takes it")


TRIGGERS: Check[object] = Check(
    "triggers",
    "the guards of the ledger and of the epoch are in the database",
    Severity.CRITICAL,
    _triggers,
    hits="Gateways take no request: without the guards a charge could be changed.",
)
DISK: Check[object] = Check(
    "disk",
    "the disks of home and ledger have room for charges and records",
    Severity.CRITICAL,
    _disk,
    hits="Gateways take no request before charges and records can be written.",
)


@dataclass(frozen=True, slots=True)
class State:
    """A gateway at one moment: `looked` is what the checks of database and disk found, by name, `unread` what of
    routing's examples, `share` why limits are counted in shares.
    """

    is_draining: bool
    has_lock: bool
    writer_age: float
    is_epoch_fresh: bool
    has_ready: bool
    unread: str
    share: str
    looked: Mapping[str, Sequence[Finding]]


def _looked(check: Check[object]) -> Check[State]:
    return Check(check.name, check.proves, check.severity, lambda state: state.looked[check.name])


def _server(state: State) -> Iterator[Finding]:
    if state.is_draining:
        yield Finding("draining", "it ends, and needs nothing")
    elif not state.has_lock:
        mend = f"it is taken again by itself: {command('doctor')} says why it isn't"
        yield Finding("the lock of the database is lost", mend)


def _writer(state: State) -> Iterator[Finding]:
    if state.writer_age > WRITER_BEHIND_SECONDS:
        yield Finding("the ledger writer is behind", f"{command('doctor')} names who locks or fills the database")


def _epoch(state: State) -> Iterator[Finding]:
    if not state.is_epoch_fresh:
        yield Finding("the catalogue epoch can't be read", f"{command('doctor')} says what the database lacks")


def _deployments(state: State) -> Iterator[Finding]:
    if not state.has_ready:
        yield Finding("no deployment is ready", f"{command('doctor')} says of each model why")


def _examples(state: State) -> Iterator[Finding]:
    if state.unread:
        yield Finding(state.unread, "they are read within seconds, or left out")


def _limits(state: State) -> Iterator[Finding]:
    if state.share:
        yield Finding(state.share, f"{command('doctor')} says why Redis doesn't answer")


DECISIVE: tuple[Check[State], ...] = (
    Check("server", "this gateway has the database's lock and goes on", Severity.CRITICAL, _server),
    Check("writer", "the ledger answers within seconds", Severity.CRITICAL, _writer),
    _looked(TRIGGERS),
    _looked(DISK),
    Check("epoch", "the catalogue's epoch was read within a second", Severity.CRITICAL, _epoch),
    Check("deployments", "an engine takes work", Severity.CRITICAL, _deployments),
    Check("examples", "the rules' examples were read", Severity.WARNING, _examples),
)
LIMITS: Check[State] = Check("limits", "rates are counted in Redis for all gateways", Severity.WARNING, _limits)


class Look:
    """The checks that need database and disk, made in a thread of its own at most once a second.

    However many probes come, they share one answer, and none of them takes a thread that requests wait for.
    """

    def __init__(self) -> None:
        self._threads = DatabaseThreads(1, most=1)
        self._looking: asyncio.Task[dict[str, list[Finding]]] | None = None
        self._good_until = 0.0

    async def findings(self) -> dict[str, list[Finding]]:
        """Return what is wrong with "triggers" and "disk", nothing where all is fine; at most `LOOK_SECONDS` old."""
        if self._looking is None or (self._looking.done() and time.monotonic() >= self._good_until):
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._looking)

    async def problems(self) -> dict[str, str]:
        """Return them in words, "" where all is fine."""
        return {name: _in_words(found) for name, found in (await self.findings()).items()}

    async def _look(self) -> dict[str, list[Finding]]:
        try:
            found = await asyncio.wait_for(self._threads.run(_look), LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            mend = f"{command('doctor')} says what the database lacks"
            found = {TRIGGERS.name: [Finding(f"can't be read: {type(error).__name__}", mend)]}
            found[DISK.name] = [Finding("not known", mend)]
        self._good_until = time.monotonic() + LOOK_SECONDS
        return found

    async def close(self) -> None:
        """End the thread."""
        self._threads.close()


def _look() -> dict[str, list[Finding]]:
    # The disk first: a database on a full one may not answer.
    return {check.name: list(check.look(None)) for check in (DISK, TRIGGERS)}


def readiness(state: State) -> dict[str, str]:
    """Return each check that decides with what is wrong, "" where nothing is."""
    return {check.name: _in_words(check.findings(state)) for check in DECISIVE}


def _in_words(findings: Sequence[Finding]) -> str:
    return "; ".join(finding.text for finding in findings if not finding.is_fine)


class Telling:
    """Tells the log of each failing check once it has failed for `TOLD_SECONDS`, and when it is fine again."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def look(self, state: State) -> None:
        """Look at the gateway as it is now."""
        now = time.monotonic()
        for check in (*DECISIVE, LIMITS):
            found = [finding for finding in check.findings(state) if not finding.is_fine]
            if not found:
                self._since.pop(check.name, None)
                if check.name in self._told:
                    self._told.remove(check.name)
                    log.info("check_fine", check=check.name)
            elif now - self._since.setdefault(check.name, now) >= TOLD_SECONDS and check.name not in self._told:
                self._told.add(check.name)
                if not state.is_draining:
                    log.warning("check_fails", check=check.name, finding=found[0].text, mend=found[0].mend)


def operator_token() -> str:
    """Return the token of this installation's operators: SLUICE_OPERATOR_TOKEN, or one derived from its secret."""
    return settings.SLUICE_OPERATOR_TOKEN or salted_hmac("sluice.readyz", "details", algorithm="sha256").hexdigest()
