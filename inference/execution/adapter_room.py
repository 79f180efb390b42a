"""Room for adapters in memory that tenants share: no tenant pushes out one that has less, or keeps another out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inference.errors import OverloadedError

MOST_LOADED = 16
CLAIM_SECONDS = 10.0  # as long a tenant that was refused for want of room has the next that there is: it tries again


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a model's adapters in memory: number, bytes (0: no bound), and the number used by one tenant.

    One tenant has as great a part of the bytes as of the number.
    """

    most: int = MOST_LOADED
    nbytes: int = 0
    per_tenant: int = MOST_LOADED

    @property
    def bytes_per_tenant(self) -> int:
        """The bytes of one tenant's adapters, 0 where nothing bounds them; its only one may have more."""
        return self.nbytes * min(self.per_tenant, self.most) // self.most


@dataclass(frozen=True, slots=True)
class Resident:
    """An adapter in memory. `owner` is the tenant that uses it or did last: "" where nobody did, None if several do."""

    key: str
    owner: str | None
    nbytes: int
    is_idle: bool


class Room:
    """The rules by which adapters make room, over those in memory, always given with the least recently used first.

    A tenant that uses as much as one may makes room with its own. Else the tenant does that has most, with what no
    request runs with. Where all are in use, a tenant with less than its even share claims one: until it was served, or
    `CLAIM_SECONDS` after it was refused last, those with more begin nothing with the adapter that they have to give up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bounds = Bounds()
        self._clock = clock
        self._claims: dict[str, float] = {}  # by tenant, until when

    def has_room(self, residents: Iterable[Resident], nbytes: int) -> bool:
        """Whether one of `nbytes` more fits in."""
        sizes, bounds = [one.nbytes for one in residents], self.bounds
        return len(sizes) < bounds.most and (not bounds.nbytes or sum(sizes) + nbytes <= bounds.nbytes)

    def victims(self, residents: Sequence[Resident], tenant: str, nbytes: int) -> list[str]:
        """Return the keys of those that make room for one of `nbytes` that `tenant` wants; raise OverloadedError where
        too many are in use.
        """
        rest, gone = list(residents), []
        while self._is_at_limit(rest, tenant, nbytes):
            victim = next((one for one in rest if one.owner == tenant and one.is_idle), None)
            if victim is None:
                used = sum(one.owner == tenant for one in rest)
                raise _in_use(f"you use {used} adapters at once, as many as you may: try again later")
            rest.remove(victim)
            gone.append(victim.key)
        while not self.has_room(rest, nbytes):
            idle = [one for one in rest if one.is_idle]
            if not idle:
                self._claim(rest, tenant, nbytes)
                raise _in_use("as many adapters as fit into memory are in use: try again later")
            parts = self._parts(rest)
            parts[tenant] = parts.get(tenant, 0.0) + self._part(1, nbytes)
            victim = max(idle, key=lambda one: parts[one.owner] if one.owner else 2.0)  # unused ones before all others
            rest.remove(victim)
            gone.append(victim.key)
        return gone

    def check_use(self, residents: Sequence[Resident], key: str, tenant: str) -> None:
        """Raise OverloadedError where `tenant` may begin nothing with the adapter `key`, whose room another claims."""
        if self._claims and key in self._yielding(residents, tenant):
            raise _in_use("this model's adapter makes room for another tenant's, which waits: try again later")

    def entered(self, tenant: str) -> None:
        """Note that the tenant has room for one more adapter now: it claims none any longer."""
        self._claims.pop(tenant, None)

    def _is_at_limit(self, residents: Iterable[Resident], tenant: str, nbytes: int) -> bool:
        own = [one.nbytes for one in residents if one.owner == tenant]
        most = self.bounds.bytes_per_tenant
        return len(own) >= self.bounds.per_tenant or bool(own and most and sum(own) + nbytes > most)

    def _claim(self, residents: Sequence[Resident], tenant: str, nbytes: int) -> None:
        now = self._clock()
        self._claims = {one: until for one, until in self._claims.items() if until > now}
        parts = self._parts(residents)
        has = parts.pop(tenant, 0.0)
        share = 1 / len({tenant, *parts, *self._claims})
        if not has or has + self._part(1, nbytes) <= share:
            self._claims[tenant] = now + CLAIM_SECONDS

    def _yielding(self, residents: Sequence[Resident], tenant: str) -> set[str]:
        """Return the keys of those, of tenants with more than their share, whose room others than `tenant` claim.

        Of tenants that all claim some, whoever did first yields to none of the others: else each would wait for them.
        """
        now = self._clock()
        waiting = [one for one, until in self._claims.items() if until > now]  # who claimed first is the first
        claims = waiting[: waiting.index(tenant)] if tenant in waiting else waiting
        parts = self._parts(residents)
        share = 1 / max(1, len({*parts, *waiting}))
        found: dict[str, None] = {}
        for _ in claims:
            owner = max(parts, key=lambda one: parts[one], default="")
            own = [one for one in residents if one.owner == owner and one.key not in found]
            if not own or parts[owner] <= share:
                break
            given = min(own, key=lambda one: not one.is_idle)
            found[given.key] = None
            parts[owner] -= self._part(1, given.nbytes)
        return set(found)

    def _parts(self, residents: Iterable[Resident]) -> dict[str, float]:
        """Return which part of the memory each tenant uses, 0 to 1."""
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for one in residents:
            if one.owner:
                counts[one.owner] += 1
                sizes[one.owner] += one.nbytes
        return {owner: self._part(count, sizes[owner]) for owner, count in counts.items()}

    def _part(self, count: int, nbytes: int) -> float:
        bounds = self.bounds
        return max(count / bounds.most, nbytes / bounds.nbytes if bounds.nbytes else 0.0)


def _in_use(message: str) -> OverloadedError:
    return OverloadedError(message, code="adapters_in_use")
