"""What one request takes of its tenant's rate limits, and giving it back."""

from __future__ import annotations

from uuid import UUID

from billing.limits.types import BucketState, Lease, RateStore, Take, Taken
from gateway.errors.faults import refusal_of_limit
from gateway.runtime.principal import Principal
from gateway.runtime.turns import Turns

LEASE_US = 30_000_000


class Limits:
    """The rate buckets and the concurrency lease of one request; lines of batches have leases of their own, and no
    buckets.
    """

    def __init__(self, store: RateStore, turns: Turns, principal: Principal, request_id: UUID) -> None:
        self._store = store
        self._turns = turns
        self._principal = principal
        self._taken = 0
        self._is_rated = principal.line is None
        self._lease = Lease(
            key=f"{{{principal.tenant}}}:{'concurrency' if self._is_rated else 'batches'}",
            limit=principal.concurrency,
            holder=request_id.hex,
            ttl_us=LEASE_US,
        )
        self.states: tuple[BucketState, ...] = ()

    async def take(self, amount: int, *, since: float, until: float) -> None:
        """Take one request, `amount` µcr and a concurrency lease, or raise a 429 or 400 Refusal and take nothing.

        A request that came at `since` waits for its turn to have a lease, at most until `until` (the loop's clock).
        """
        takes: list[Take] = []
        if self._is_rated:
            takes = [Take(self._principal.request_bucket, 1), Take(self._principal.credit_bucket, amount)]
        decision = await self._turns.take(takes, self._lease, since=since, until=until)
        if not isinstance(decision, Taken):
            raise refusal_of_limit(decision)
        self._taken = amount
        self.states = decision.states

    async def renew(self) -> None:
        """Renew the concurrency lease."""
        await self._store.renew(self._lease)

    async def give_back(self) -> None:
        """Undo `take`: nothing ran."""
        if self._is_rated:
            await self._store.adjust(self._principal.request_bucket, -1)
        await self.close(0)

    async def close(self, charge: int) -> None:
        """Leave exactly `charge` taken from the credit bucket and end the concurrency lease."""
        if self._is_rated and charge != self._taken:
            await self._store.adjust(self._principal.credit_bucket, charge - self._taken)
        await self._store.give_back(self._lease)
        self._turns.wake(self._lease.key)
