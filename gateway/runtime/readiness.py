"""Whether this gateway can work: what stands behind ``/readyz``."""

from __future__ import annotations

import asyncio

from django.db import connection

from billing import triggers
from gateway.runtime import epoch_triggers
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch
from gateway.runtime.threads import DatabaseThreads

WRITER_BEHIND_SECONDS = 5.0
TRIGGERS_SECONDS = 1.0


async def readiness(
    *, writer_age: float, epoch: Epoch, engines: Engines, threads: DatabaseThreads, is_draining: bool
) -> dict[str, str]:
    """Return each check with what is wrong, "" where nothing is; `threads` run the one query."""
    return {
        "server": "draining" if is_draining else "",
        "database": "the ledger writer is behind" if writer_age > WRITER_BEHIND_SECONDS else "",
        "triggers": await _triggers(threads),
        "epoch": "" if epoch.is_fresh else "the catalogue epoch can't be read",
        "deployments": "" if engines.any_ready() else "no deployment is ready",
    }


def missing_triggers() -> list[str]:
    """Return the names of the triggers that aren't there: append-only tables and the catalogue epoch rest on them."""
    return [*triggers.missing(connection), *epoch_triggers.missing()]


async def _triggers(threads: DatabaseThreads) -> str:
    try:
        missing = await asyncio.wait_for(threads.run(missing_triggers), TRIGGERS_SECONDS)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return f"can't be read: {type(error).__name__}"
    return f"missing: {', '.join(missing)}" if missing else ""
