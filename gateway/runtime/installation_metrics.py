"""The metrics of the installation as a whole: every gateway shows the same, as it read it last."""

from __future__ import annotations

from contextlib import suppress

from django.conf import settings
from prometheus_client import CollectorRegistry, Gauge

from gateway.runtime.installation import Installation


class InstallationMetrics:
    """Periodic work, the last check of the books, mail and holds that are overdue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tasks: set[str] = set()  # those that are shown
        task = ["task"]
        self.task_success = Gauge(
            "sluice_task_last_success_timestamp_seconds",
            "When a periodic task succeeded last.",
            task,
            registry=registry,
        )
        self.task_seconds = Gauge(
            "sluice_task_duration_seconds", "How long its last success took.", task, registry=registry
        )
        self.task_failures = Gauge(
            "sluice_task_consecutive_failures", "How often it failed since.", task, registry=registry
        )
        self.checked_at = Gauge(
            "sluice_reconciliation_timestamp_seconds",
            "When the last check of the books ended; 0: never.",
            registry=registry,
        )
        interval = Gauge(
            "sluice_reconciliation_interval_seconds",
            "From one check of the books to the next, as the settings have it.",
            registry=registry,
        )
        interval.set(3600 * settings.SLUICE_RECONCILE_HOURS)
        self.contradictions = Gauge(
            "sluice_reconciliation_findings", "Contradictions that it found.", registry=registry
        )
        self.mail_waiting = Gauge("sluice_mail_waiting", "Mails that are to be sent.", registry=registry)
        self.mail_failed = Gauge("sluice_mail_failed", "Mails given up within a day.", registry=registry)
        self.overdue_holds = Gauge("sluice_overdue_holds", "Holds whose lease is over.", registry=registry)

    def seen(self, seen: Installation) -> None:
        """Show the latest reading of what all gateways share."""
        gone = self._tasks - {task.name for task in seen.tasks}
        for gauge in (self.task_success, self.task_seconds, self.task_failures):
            for name in gone:
                with suppress(KeyError):  # one that never succeeded
                    gauge.remove(name)
        self._tasks = {task.name for task in seen.tasks}
        for task in seen.tasks:
            if task.succeeded_at is not None:
                self.task_success.labels(task.name).set(task.succeeded_at.timestamp())
            self.task_seconds.labels(task.name).set(task.seconds)
            self.task_failures.labels(task.name).set(task.failures)
        if seen.checked_at is not None:
            self.checked_at.set(seen.checked_at.timestamp())
        self.contradictions.set(seen.contradictions)
        self.mail_waiting.set(seen.mail_waiting)
        self.mail_failed.set(seen.mail_failed)
        self.overdue_holds.set(seen.overdue_holds)
