"""The loops of a runtime: they keep its holds, its engines and its snapshot true, until they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from billing.writer.operations import Renew, Renewed
from gateway.errors import faults

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

RENEW_INTERVAL = 10.0
RENEW_RETRY = 1.0
RENEW_TIMEOUT = 5.0
FENCE_INTERVAL = 0.5
FENCE_MARGIN = 5.0
LEASE_SECONDS = 30.0
LAST_USED_INTERVAL = 5.0

log = structlog.get_logger(__name__)


async def renew(runtime: Runtime) -> None:
    """Renew the leases of all holds that this process works on, and keep their checkpoints.

    A generation whose hold isn't ours any more is stopped. Raises what the writer raised, and TimeoutError.
    """
    asked = list(runtime.live.values())
    for generation in asked:
        await generation.renew_limits()
    if not asked:
        return
    started = asyncio.get_running_loop().time()
    operation = Renew(runtime.incarnation, {generation.id: generation.checkpoint() for generation in asked})
    submitted = asyncio.ensure_future(runtime.writer.submit(operation))
    async with asyncio.timeout(RENEW_TIMEOUT):
        answer = await submitted
    assert isinstance(answer, Renewed), answer
    for generation in asked:
        if generation.id in answer.holds:
            generation.lease_until = started + LEASE_SECONDS
        elif generation.id in runtime.live:
            log.warning("hold_lost", request_id=str(generation.id))
            generation.cancel(faults.LEASE_LOST)


def fence(runtime: Runtime) -> None:
    """Stop the generations whose leases end within `FENCE_MARGIN` seconds: somebody else may take their holds then."""
    limit = asyncio.get_running_loop().time() + FENCE_MARGIN
    for generation in list(runtime.live.values()):
        if generation.lease_until <= limit:
            generation.cancel(faults.LEASE_LOST)


async def keep_renewed(runtime: Runtime) -> None:
    """Renew each `RENEW_INTERVAL` seconds, and soon again after a failure."""
    while True:
        interval = RENEW_INTERVAL
        try:
            await renew(runtime)
        except Exception as error:  # noqa: BLE001 - the fence stops what couldn't be renewed
            log.warning("renew_failed", error=str(error) or type(error).__name__)
            interval = RENEW_RETRY
        await asyncio.sleep(interval)


async def keep_fenced(runtime: Runtime) -> None:
    """Fence each `FENCE_INTERVAL` seconds."""
    while True:
        fence(runtime)
        runtime.metrics.writer_age.set(runtime.writer.oldest_age)
        await asyncio.sleep(FENCE_INTERVAL)


async def follow_epoch(runtime: Runtime) -> None:
    """Refresh the snapshot whenever the epoch moved on or a new price came into force."""
    while True:
        epoch = await runtime.epoch.next()
        if epoch == runtime.snapshot.epoch and not runtime.is_snapshot_old:
            continue
        try:
            await runtime.refresh(epoch)
        except Exception:
            log.exception("refresh_failed")  # the next reading tries again; until then admission refuses


async def each(seconds: float, work: Callable[[], Awaitable[object]], name: str) -> None:
    """Do `work` every so many seconds; a failure is logged and the next turn tries again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("loop_failed", loop=name)
