"""Checks of an installation: each declared once, with a proof by doing, its severity and the command that mends it.

Gateways run those that decide whether they take requests (`gateway.runtime.readiness`), the periodic work and `doctor`
all others (`operation.checks`). Metric, alert and pages show what they found.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.conf import settings

Of_contra = TypeVar("Of_contra", contravariant=True)


class Severity(StrEnum):
    """The severity of a failing check, as alerts have it: with a critical one requests fail, or credit is at risk."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that a check saw: fine, or with `mend`, the way out, whose commands stand in backquotes.

    `subject` is what it is about, where the check is about several.
    """

    text: str
    mend: str = ""
    subject: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.mend

    def __str__(self) -> str:
        about = f"{self.subject}: " if self.subject else ""
        return f"{about}{self.text}: {self.mend}" if self.mend else about + self.text


@dataclass(frozen=True, slots=True)
class Check(Generic[Of_contra]):
    """A check: `look` proves by doing what `proves` says, of a given thing, and yields what it found; `hits` says in a
    sentence who feels a failure.

    It isn't looked at while one of those that it `needs` fails. The periodic work looks each `every_s` seconds.
    """

    name: str
    proves: str
    severity: Severity
    look: Callable[[Of_contra], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    every_s: float = 60.0
    hits: str = ""

    def findings(self, of: Of_contra) -> list[Finding]:
        """Return what it finds of `of`; a proof that breaks off is a finding, too."""
        try:
            return list(self.look(of))
        except Exception as error:  # noqa: BLE001 - one broken proof keeps none of the others from being made
            reason = " ".join(str(error).split()) or type(error).__name__
            return [Finding(f"can't be looked at: {reason[:300]}", "mend that, then look again")]


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of one check; `lacks` names the failing check without which it can't be looked at."""

    check: Check[Any]
    findings: Sequence[Finding]
    lacks: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.lacks and all(finding.is_fine for finding in self.findings)

    @property
    def told(self) -> str:
        """The failing findings, each with its cure; empty without any."""
        return "; ".join(str(finding) for finding in self.findings if not finding.is_fine)


def results(checks: Iterable[Check[Of_contra]], of: Of_contra) -> Iterator[Result]:
    """Yield the result of each check, in their order."""
    failing: set[str] = set()
    for check in checks:
        lacks = next((name for name in check.needs if name in failing), "")
        result = Result(check, [] if lacks else check.findings(of), lacks)
        if not result.is_fine:
            failing.add(check.name)
        yield result


def command(*arguments: str) -> str:
    """Return the whole command line of `manage.py` with these arguments, to be pasted where this process runs."""
    return f"`{shlex.join([_short(sys.executable), _short(str(settings.BASE_DIR / 'manage.py')), *arguments])}`"


def _short(path: str) -> str:
    """Return a path as it is shortest to say in this process's folder."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
