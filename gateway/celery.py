"""Celery: `manage.py jobs` runs worker and beat in one process; `celery -A gateway worker` and `… beat` run each alone.

Messages only say that it is time to look: tasks are sweeps over rows (`gateway.tasks`), so no effect depends on a
message, there is no result to keep, and a broker that loses everything loses nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.platforms import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

from django.conf import settings

from gateway.broker.redis import broker_url
from gateway.logs import configure_logs
from gateway.runtime.jobs_lock import JobsLock, JobsLockedError

# Celery warns of being root, not in our lines' form: elsewhere a message could be a program, here only JSON is read.
warnings.simplefilter("ignore", SecurityWarning)

app = Celery("sluice")
app.conf.update(
    imports=["gateway.tasks"],
    task_ignore_result=True,
    task_default_queue="sluice",
    task_time_limit=3600,  # of worker processes; threads can't be ended
    worker_concurrency=settings.SLUICE_CELERY_CONCURRENCY,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=True,  # of those acknowledged late: none
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    beat_scheduler="gateway.broker.beat:Scheduler",
)
if settings.REDIS_URL:
    app.conf.update(
        broker_url=broker_url(settings.REDIS_URL),
        broker_transport_options={
            "global_keyprefix": "sluice:celery:",
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
        },
    )
else:
    app.conf.update(
        broker_url="localhost",
        broker_transport="gateway.broker.filesystem:Transport",
        broker_transport_options={"folder": str(settings.SLUICE_HOME / "celery")},
    )


@signals.setup_logging.connect  # type: ignore[untyped-decorator] # celery has no types
def set_up_logging(**_: Any) -> None:
    """Write the same lines as every other process; Celery's own only from warnings on, for it tells of each message."""
    configure_logs()
    for name in ("celery", "kombu"):
        logging.getLogger(name).setLevel(logging.WARNING)


@signals.worker_init.connect  # type: ignore[untyped-decorator] # same
def keep_database(**_: Any) -> JobsLock | None:
    """Let no restore replace SQLite's database until this worker ends; end at once while one does."""
    if not settings.SLUICE_EMBEDDED:
        return None
    try:
        return JobsLock.share(Path(settings.DATABASES["default"]["NAME"]))
    except JobsLockedError as error:  # only an exit leaves a signal of Celery's
        sys.exit(str(error))
