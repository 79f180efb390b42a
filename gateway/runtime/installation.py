"""The installation's figures in `/metrics`, read from the database: every gateway shows the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from base import clock
from billing.models import Hold
from billing.selectors.reconciliation import last_reconciliation
from gateway.runtime.task_states import TaskState
from tenancy.models import OutgoingMail


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One periodic task: its last success, how long that took, and its failures since."""

    name: str
    succeeded_at: datetime | None
    seconds: float
    failures: int


@dataclass(frozen=True, slots=True)
class Installation:
    """The figures of one reading; `checked_at` and `contradictions` are of the last reconciliation, if any."""

    tasks: tuple[TaskFacts, ...]
    checked_at: datetime | None
    contradictions: int
    mail_waiting: int
    mail_failed: int
    overdue_holds: int


def read_installation() -> Installation:
    """Return the facts of this moment."""
    now, state = clock.now(), OutgoingMail.State
    tasks = TaskState.objects.values_list("name", "succeeded_at", "seconds", "failures")
    checked = last_reconciliation()
    yesterday = now - timedelta(days=1)
    return Installation(
        tasks=tuple(TaskFacts(*row) for row in tasks),
        checked_at=checked.finished_at if checked is not None else None,
        contradictions=(checked.found or 0) if checked is not None else 0,
        mail_waiting=OutgoingMail.objects.filter(state=state.WAITING).count(),
        mail_failed=OutgoingMail.objects.filter(state=state.FAILED, ended_at__gt=yesterday).count(),
        overdue_holds=Hold.objects.filter(lease_until__lt=now).count(),
    )
