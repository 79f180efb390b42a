"""One request's part of its tenant's rate limits: taken, renewed, given back."""

from __future__ import annotations

from uuid import UUID

import msgspec

from base import leases
from billing.limits.types import BucketState, Decision, Lease, Limited, RateStore, Take, Taken
from gateway.concurrency.turns import Turns, lease_in_turn
from gateway.errors.faults import refusal_of_limit
from gateway.runtime.principal import BATCHES, Principal

LEASE_US = leases.SECONDS * 1_000_000


class Limits:
    """The rate buckets and the concurrency leases of one request: its tenant's and, where it has some, its key's.

    Batches have leases of their own, and no buckets.
    """

    def __init__(self, store: RateStore, turns: Turns, principal: Principal, request_id: UUID) -> None:
        self._store = store
        self._turns = turns
        self._principal = principal
        self._taken = 0

        def lease(name: str, limit: int) -> Lease:
            return Lease(key=f"{{{principal.tenant}}}:{name}", limit=limit, holder=request_id.hex, ttl_us=LEASE_US)

        self._lease = lease("concurrency" if principal.batch is None else BATCHES, principal.concurrency)
        self._key_lease: Lease | None = None
        if principal.key_concurrency is not None:
            self._key_lease = lease(f"key_concurrency:{principal.api_key}", principal.key_concurrency)
        self.states: tuple[BucketState, ...] = ()

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return (self._lease,) if self._key_lease is None else (self._lease, self._key_lease)

    async def take_request(self) -> None:
        """Take one request of the rate, or raise a 429 Refusal: before anything is computed for it."""
        takes = [Take(bucket, 1) for bucket in self._principal.request_buckets]
        if takes:
            decision = await self._store.take(takes)
            if not isinstance(decision, Taken):
                raise refusal_of_limit(decision)
            self.states = decision.states

    async def take(self, amount: int, *, since: float, until: float) -> None:
        """Take `amount` µcr and a concurrency lease, or raise a 429 or 400 Refusal and take nothing more.

        A request that came at `since` waits for its turn to have a lease, at most until `until` (the loop's clock).
        """
        takes = [Take(bucket, amount) for bucket in self._principal.credit_buckets]
        if self._key_lease is not None:
            await self._lease_of_key(self._key_lease)
        decision: Decision | None = None
        try:
            decision = await lease_in_turn(self._turns, self._store, takes, self._lease, since=since, until=until)
        finally:
            if self._key_lease is not None and not isinstance(decision, Taken):
                await self._store.give_back(self._key_lease)
        if not isinstance(decision, Taken):
            raise refusal_of_limit(decision)
        self._taken = amount
        self.states += decision.states

    async def _lease_of_key(self, lease: Lease) -> None:
        """Take one of the key's places. Nobody waits for them: meanwhile it would take its tenant's from others."""
        decision = await self._store.take((), lease)
        if isinstance(decision, Limited):
            raise refusal_of_limit(msgspec.structs.replace(decision, name="key_concurrency"))

    async def renew(self) -> None:
        """Renew the concurrency leases."""
        for lease in self._leases:
            await self._store.renew(lease)

    async def give_back(self) -> None:
        """Undo what was taken: nothing ran."""
        await self._end(0, [Take(bucket, -1) for bucket in self._principal.request_buckets])

    async def close(self, charge: int) -> None:
        """Leave exactly `charge` taken from the credit buckets and end the concurrency leases."""
        await self._end(charge, [])

    async def _end(self, charge: int, takes: list[Take]) -> None:
        """End the leases; take what `takes` say, and by what `charge` differs from what was taken."""
        if charge != self._taken:
            takes = [*takes, *(Take(bucket, charge - self._taken) for bucket in self._principal.credit_buckets)]
        await self._store.give_back(self._lease, takes)
        if self._key_lease is not None:
            await self._store.give_back(self._key_lease)
        self._turns.wake(self._lease.key)
