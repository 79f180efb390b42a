"""The checks behind ``/readyz``: whether this gateway can work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection
from django.utils.crypto import salted_hmac

from base.database.threads import DatabaseThreads
from base.home import is_disk_full
from billing import triggers
from gateway.runtime import epoch_triggers
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch

WRITER_BEHIND_SECONDS = 5.0
LOOK_SECONDS = 1.0  # how long the database may take, and how long its answer is cached


class Look:
    """The checks that need database and disk, made in a thread of its own at most once a second.

    However many probes come, they share one answer, and none of them takes a thread that requests wait for.
    """

    def __init__(self) -> None:
        self._threads = DatabaseThreads(1, most=1)
        self._looking: asyncio.Task[dict[str, str]] | None = None
        self._good_until = 0.0

    async def problems(self) -> dict[str, str]:
        """Return what is wrong with "triggers" and "disk", "" where nothing is; at most `LOOK_SECONDS` old."""
        if self._looking is None or (self._looking.done() and time.monotonic() >= self._good_until):
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, str]:
        try:
            found = await asyncio.wait_for(self._threads.run(_look), LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            found = {"triggers": f"can't be read: {type(error).__name__}", "disk": "not known"}
        self._good_until = time.monotonic() + LOOK_SECONDS
        return found

    async def close(self) -> None:
        """End the thread."""
        self._threads.close()


def _look() -> dict[str, str]:
    full = is_disk_full()  # first: a database on a full disk may not answer
    missing = missing_triggers()
    return {
        "triggers": f"missing: {', '.join(missing)}" if missing else "",
        "disk": "nearly full" if full else "",
    }


async def readiness(
    *,
    writer_age: float,
    epoch: Epoch,
    engines: Engines,
    look: Look,
    is_draining: bool,
    has_lock: bool,
    unread: Callable[[bool], str],
) -> dict[str, str]:
    """Return each check with what is wrong, "" where nothing is.

    `unread` tells of routing's examples, given whether there are deployments that could serve.
    """
    return {
        "server": "draining" if is_draining else "" if has_lock else "the lock of the database is lost",
        "database": "the ledger writer is behind" if writer_age > WRITER_BEHIND_SECONDS else "",
        **await look.problems(),
        "epoch": "" if epoch.is_fresh else "the catalogue epoch can't be read",
        "deployments": "" if engines.any_ready() else "no deployment is ready",
        "examples": unread(engines.any_ready()),
    }


def missing_triggers() -> list[str]:
    """Return the names of missing triggers, on which append-only tables and the catalogue epoch depend."""
    return [*triggers.missing(connection), *epoch_triggers.missing()]


def operator_token() -> str:
    """Return the token of this installation's operators: SLUICE_OPERATOR_TOKEN, or one derived from its secret."""
    return settings.SLUICE_OPERATOR_TOKEN or salted_hmac("sluice.readyz", "details", algorithm="sha256").hexdigest()
