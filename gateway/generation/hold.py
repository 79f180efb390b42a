"""The credit behind one running generation: extended as it is used, and pinned anew where the request moves.

The meter says when to ask for more; the engine is told its allowance whenever that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

import structlog

from billing.writer.errors import WriterError
from billing.writer.operations import Extend, Held, Refused
from gateway.errors.faults import reason_of_hold
from gateway.generation.meter import HoldRequest, Meter
from gateway.generation.placement import Placement
from gateway.generation.pricing import pinned_anew
from gateway.runtime.runtime import Ledger
from inference.types import Prepared, Usage

RETRY_SECONDS = 0.2
HELD_SECONDS = 1.5  # less than an engine waits for a higher allowance

log = structlog.get_logger(__name__)


class Hold:
    """The hold of `request` and its `meter`, until it is closed.

    `tell` tells the engine an allowance and whether it is final; `lost` is called when the hold turns out not to be
    ours any more; `supervise` runs work to its end.
    """

    def __init__(
        self,
        request: UUID,
        wallet: UUID,
        meter: Meter,
        ledger: Ledger,
        *,
        tell: Callable[[int, bool], Awaitable[None]],
        lost: Callable[[], None],
        supervise: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.meter = meter
        self.is_closed = False
        self._request = request
        self._wallet = wallet
        self._ledger = ledger
        self._tell: Callable[[int, bool], Awaitable[None]] | None = tell  # None once it is closed
        self._lost: Callable[[], None] | None = lost
        self._supervise = supervise
        self._extending: Meter | None = None  # the one for which more is asked

    def permit(self) -> tuple[int, bool]:
        """Return what the engine may generate, as that which it is told."""
        return self.meter.permit()

    def started(self, cached_tokens: int) -> None:
        """Note how much of the prompt was cached."""
        self.meter.started(cached_tokens)
        self._follow()

    def restart(self) -> None:
        """Note that the engine that has it delivered nothing: the next one may have none of the prompt cached."""
        self.meter.restart()

    def used(self, usage: Usage) -> None:
        """Note the usage so far."""
        self.meter.used(usage)
        self._follow()

    async def pin(self, placement: Placement, prepared: Prepared) -> Prepared:
        """Pin the hold to where its placement is now and meter by the price there; see `pinned_anew`."""
        price = await pinned_anew(self._ledger, self._request, placement, prepared, held=self.meter.held)
        self.meter = price.meter
        return price.prepared

    def close(self) -> None:
        """Ask for nothing any more: the request has ended."""
        self.is_closed = True
        self._tell = self._lost = None  # they refer to the generation: both would stay until the collector finds them

    def _follow(self) -> None:
        """Tell the engine of more, or ask for more credit, where it has nearly generated what it was told."""
        meter = self.meter
        if not meter.is_short:
            return
        if meter.has_more:
            self._supervise(self._allow())
        more = None if self._extending is meter else meter.next_hold()
        if more is not None:
            self._extending = meter
            self._supervise(self._extend(meter, more))

    async def _allow(self) -> None:
        """Tell the engine what it may generate, where that is more than it knows."""
        if self._tell is not None and self.meter.has_more:
            await self._tell(*self.permit())

    async def _extend(self, meter: Meter, more: HoldRequest | None) -> None:
        """Hold more credit and raise the engine's allowance, for as long as the meter in use asks for more.

        What other requests hold is waited for, while the engine waits with this one.
        """
        patience = asyncio.get_running_loop().time() + HELD_SECONDS
        try:
            while more is not None and not self.is_closed and meter is self.meter:
                operation = Extend(request=self._request, wallet=self._wallet, amount=more.amount, least=more.least)
                try:
                    answer = await self._ledger.submit(operation)
                except WriterError as error:
                    log.warning("extend_failed", error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if isinstance(answer, Held):
                    meter.extended(more, answer.total)
                elif isinstance(answer, Refused):
                    is_held = answer.freed >= more.least
                    if is_held and more.is_final and asyncio.get_running_loop().time() < patience:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    meter.refused(more, reason_of_hold(answer.limit))
                elif self._lost is not None:
                    self._lost()
                    return
                await self._allow()
                more = meter.next_hold()
        finally:
            if self._extending is meter:
                self._extending = None
