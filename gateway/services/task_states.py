"""Notes of periodic work, for metrics: when each task succeeded last, and how often it failed since."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import DatabaseError
from django.db.models import F

from billing import clock
from gateway.models import TaskState

SUCCESS_SECONDS = 15.0
"""Between two notes of one task's success by one process: some tasks run each second."""

logger = logging.getLogger("sluice.jobs")
_noted: dict[str, float] = {}


def noted(name: str, run: Callable[[], bool]) -> None:
    """Run the task `name` and note how it ended, unless `run` returns False: it did nothing. Raise what it raises.

    That a note can't be written is logged, and fails no task.
    """
    began = time.monotonic()
    try:
        has_run = run()
    except Exception as error:
        _noted.pop(name, None)
        _write(name, error=f"{type(error).__name__}: {error}")
        raise
    now = time.monotonic()
    if has_run and now - _noted.get(name, float("-inf")) >= SUCCESS_SECONDS:
        _noted[name] = now
        _write(name, seconds=now - began)


def _write(name: str, *, seconds: float = 0.0, error: str = "") -> None:
    try:
        if error:
            failed = TaskState.objects.filter(name=name).update(failures=F("failures") + 1, error=error[:300])
            if not failed:
                TaskState.objects.get_or_create(name=name, defaults={"failures": 1, "error": error[:300]})
            return
        state = TaskState(name=name, succeeded_at=clock.now(), seconds=seconds)
        TaskState.objects.bulk_create(
            [state],
            update_conflicts=True,
            unique_fields=["name"],
            update_fields=["succeeded_at", "seconds", "failures", "error"],
        )
    except DatabaseError as trouble:
        logger.warning("no note of a task: %s", trouble, extra={"job": name})
