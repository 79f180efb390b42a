"""Celery, for those who scale with Redis: `celery -A operation worker` and `celery -A operation beat`, as they are.

Messages only say that it is time to look: tasks are sweeps over rows (`operation.jobs.tasks`), so no effect depends on
a message, there is no result to keep, and a broker that loses everything loses nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from celery import Celery, signals
from celery.platforms import SecurityWarning
from celery.worker import state
from redis.connection import SSLConnection, parse_url

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

from django.conf import settings
from django.core.management.base import CommandError

from base.heartbeat import touch_heartbeat
from gateway.logs import configure_logs
from operation.jobs_lock import JobsLock, JobsLockedError

# Celery warns of being root, not in our lines' form: elsewhere a message could be a program, here only JSON is read.
warnings.simplefilter("ignore", SecurityWarning)

QUEUE = "sluice"
MOST_WAITING = 100
SILENCE_S = 120
"""Seconds after which a worker that gets no message ends, as does a beat that sends none: whoever started it starts it
again."""
LAST_MESSAGE_S = 5
"""Seconds after which the kernel ends a beat that was told to end and still waits for Redis."""
LEAST_EXPIRY_S = 60.0
"""Seconds for which a message is good at least: clocks of several machines differ."""


def broker_url(address: str) -> str:
    """Return `address`, which redis-py reads, as kombu reads it: the same server, database, user and certificates.

    kombu checks a server's certificate only where it is told to. Other options are for redis-py's own clients.
    """
    found = parse_url(address)  # type: ignore[no-untyped-call]
    user, password = (quote(found.get(name) or "", safe="") for name in ("username", "password"))
    sign_in = f"{user}:{password}@" if user or password else ""
    database = found.get("db", 0)
    if path := found.get("path"):
        return f"redis+socket://{sign_in}{path}?{urlencode({'virtual_host': database})}"
    host = found.get("host", "localhost")
    server = f"{sign_in}{f'[{host}]' if ':' in host else host}:{found.get('port', 6379)}/{database}"
    if found.get("connection_class") is not SSLConnection:
        return f"redis://{server}"
    options = {"ssl_cert_reqs": "required"} | {name: found[name] for name in found if name.startswith("ssl_")}
    return f"rediss://{server}?{urlencode(options)}"


app = Celery("sluice")
app.conf.update(
    broker_url=broker_url(settings.REDIS_URL) if settings.REDIS_URL else None,
    broker_transport_options={
        "global_keyprefix": "sluice:celery:",
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
    },
    task_ignore_result=True,
    task_default_queue=QUEUE,
    task_time_limit=3600,  # of worker processes; threads can't be ended
    worker_concurrency=settings.SLUICE_CELERY_CONCURRENCY,
    # What waits for a thread when Redis ends keeps its place for ever, and a worker without places takes nothing more.
    worker_prefetch_multiplier=10,
    worker_enable_remote_control=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=True,  # of those acknowledged late: none
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    beat_scheduler="celery.beat:Scheduler",  # in memory: what is due seldom says so by its rows
)


@signals.import_modules.connect  # type: ignore[untyped-decorator] # celery has no types
def make_tasks(**_: Any) -> None:
    """Make Celery's tasks and beat's schedule of the list of jobs, now that Django is set up."""
    from operation.jobs.tasks import JOBS, task

    app.conf.beat_schedule = {
        job.name: {
            "task": app.task(task(job, _goes_on), name=job.name).name,
            "schedule": job.every_s,
            "options": {"expires": max(job.every_s, LEAST_EXPIRY_S)},
        }
        for job in JOBS
    }


def _goes_on() -> bool:
    return state.should_stop is None


@signals.setup_logging.connect  # type: ignore[untyped-decorator] # same
def set_up_logging(**_: Any) -> None:
    """Write the same lines as every other process; Celery's own only from warnings on, for it tells of each message."""
    configure_logs()
    for name in ("celery", "kombu"):
        logging.getLogger(name).setLevel(logging.WARNING)


@signals.worker_init.connect  # type: ignore[untyped-decorator] # same
@signals.beat_init.connect  # type: ignore[untyped-decorator] # same
def need_redis(**_: Any) -> None:
    """End at once where there is no Redis: only an exit leaves a signal of Celery's."""
    if not settings.REDIS_URL:
        sys.exit("Celery needs REDIS_URL. Without Redis `manage.py jobs` does the periodic work")


@signals.worker_init.connect  # type: ignore[untyped-decorator] # same
def keep_database(**_: Any) -> JobsLock | None:
    """End at once on a database that this code can't work on, or that is being restored; let none replace SQLite's
    until this worker ends.
    """
    from operation.schema import need_database

    lock = None
    try:
        if settings.SLUICE_EMBEDDED:
            lock = JobsLock.share(Path(settings.DATABASES["default"]["NAME"]))
        need_database()
    except JobsLockedError as error:
        sys.exit(str(error))
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.returncode)
    return lock


@signals.beat_init.connect  # type: ignore[untyped-decorator] # same
@signals.worker_ready.connect  # type: ignore[untyped-decorator] # same
@signals.task_received.connect  # type: ignore[untyped-decorator] # same
def end_when_silent(**_: Any) -> None:
    """Have the kernel end this process in `SILENCE_S` seconds, unless this is called again.

    A worker may stop to take messages when Redis is restarted, and beat to send them when the clock is set back.
    """
    signal.alarm(SILENCE_S)


@signals.beat_init.connect  # type: ignore[untyped-decorator] # same
def end_between_messages(sender: Any, **_: Any) -> None:
    """Let beat end after the message that it sends: what Celery's own handler raises in the middle of one can be lost
    in the client of Redis, and beat would go on.
    """

    def end(*_: Any) -> None:
        sender.stop()
        signal.alarm(LAST_MESSAGE_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


@signals.after_task_publish.connect  # type: ignore[untyped-decorator] # same
def keep_queue_short(**_: Any) -> None:
    """Show that beat lives, and drop what waits beyond `MOST_WAITING`: without a worker it would fill Redis, in which
    gateways count limits.
    """
    touch_heartbeat()
    end_when_silent()
    with app.pool.acquire(block=True) as connection:
        channel = connection.default_channel
        if channel.queue_declare(queue=QUEUE).message_count > MOST_WAITING:
            channel.queue_purge(QUEUE)
