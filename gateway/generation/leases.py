"""Leases of this process's holds: renewed while their generations run, and fenced before a sweep may take them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

import structlog

from billing.writer.operations import LEASE_SECONDS, Renew, Renewed
from gateway.errors import faults
from gateway.runtime.requests import Requests
from gateway.runtime.runtime import Ledger

RENEW_INTERVAL = 10.0
RENEW_RETRY = 1.0
RENEW_TIMEOUT = 5.0
FENCE_INTERVAL = 0.5
FENCE_MARGIN = 5.0

log = structlog.get_logger(__name__)


class Leases:
    """Renews and fences the holds of the requests that run.

    Those of requests in `closings` are renewed too: what closes them is known, and only not applied yet.
    """

    def __init__(self, requests: Requests, ledger: Ledger) -> None:
        self._requests = requests
        self._ledger = ledger

    async def renew(self) -> None:
        """Renew the leases of all holds, and store their checkpoints.

        A generation whose hold isn't ours any more is stopped. Raises what the writer raised, and TimeoutError.
        """
        asked = list(self._requests.live.values())
        for generation in asked:
            await generation.renew_limits()
        checkpoints: dict[UUID, Mapping[str, int]] = {request: {} for request in self._requests.closings}
        checkpoints |= {generation.id: generation.checkpoint() for generation in asked}
        if not checkpoints:
            return
        started = asyncio.get_running_loop().time()
        operation = Renew(self._requests.incarnation, checkpoints)
        submitted = asyncio.ensure_future(self._ledger.submit(operation))
        async with asyncio.timeout(RENEW_TIMEOUT):
            answer = await submitted
        assert isinstance(answer, Renewed), answer
        for generation in asked:
            if generation.id in answer.holds:
                generation.lease_until = started + LEASE_SECONDS
            elif generation.id in self._requests.live and generation.id not in answer.busy:
                log.warning("hold_lost", request_id=str(generation.id))
                generation.cancel(faults.LEASE_LOST)

    def fence(self) -> None:
        """Stop the generations whose leases end within `FENCE_MARGIN` s: a sweep may take their holds then."""
        limit = asyncio.get_running_loop().time() + FENCE_MARGIN
        for generation in list(self._requests.live.values()):
            if generation.lease_until <= limit:
                generation.cancel(faults.LEASE_LOST)

    async def keep_renewed(self) -> None:
        """Renew each `RENEW_INTERVAL` seconds, and soon again after a failure, until cancelled."""
        while True:
            interval = RENEW_INTERVAL
            try:
                await self.renew()
            except Exception as error:  # noqa: BLE001 - the fence stops what couldn't be renewed
                log.warning("renew_failed", error=str(error) or type(error).__name__)
                interval = RENEW_RETRY
            await asyncio.sleep(interval)

    async def keep_fenced(self) -> None:
        """Fence each `FENCE_INTERVAL` seconds, until cancelled."""
        while True:
            self.fence()
            await asyncio.sleep(FENCE_INTERVAL)
