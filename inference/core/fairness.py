"""Fairness between tenants by weighted virtual token counters.

Each tenant has a counter of the service that it got, divided by its weight; of the tenants with waiting requests, the
one with the lowest counter is served next (the virtual token counter of Sheng et al., 2024). The counter of a tenant
that was idle is raised to the lowest of those when it comes back, so that idle time earns nothing. Counters are
integers in millionths of a priced token and never rebased.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """An item of a fair queue: its tenant's weight in thousandths (1000 = 1.0) and band, and its own priority."""

    @property
    def tenant(self) -> str: ...

    @property
    def weight(self) -> int: ...

    @property
    def band(self) -> int: ...

    @property
    def priority(self) -> int: ...


T = TypeVar("T", bound=Queued)

NEWEST = 8


@dataclass(frozen=True, slots=True)
class Prices:
    """How much a token of each class adds to its tenant's counter, in thousandths.

    A cached token isn't free, since its request takes a row.
    """

    prompt: int = 1000
    cached: int = 100
    output: int = 2000

    @classmethod
    def of(cls, rates: Mapping[str, int]) -> Prices:
        """Return the ratios between a rate card's `rates` by class, or the defaults when input is free.

        A class without a rate keeps its default ratio; one that is free counts 1, since it takes time from others.
        """
        default, computed = cls(), rates.get("input", 0)
        if computed <= 0:
            return default
        return cls(
            cached=max(1, 1000 * rates["cache_read"] // computed) if "cache_read" in rates else default.cached,
            output=max(1, 1000 * rates["output"] // computed) if "output" in rates else default.output,
        )


Turn = tuple[int, int, int]
"""A tenant's place in the order of turns, the lowest first: its band (negative), its counter, its lift (negative)."""
BEGUN = -(2**63)  # in the place of the lift: what was admitted goes before what waits with the same counter


@dataclass(slots=True)
class _Share(Generic[T]):
    """One tenant. `lift` is by how much its counter was raised last: it goes before the one it was raised to."""

    weight: int
    band: int
    counter: int = 0
    lift: int = 0
    items: dict[T, tuple[int, int]] = field(default_factory=dict)  # item → its place: priority (negative), arrival
    order: list[tuple[tuple[int, int], T]] = field(default_factory=list)  # a heap with removed items in it
    entry: tuple[Turn, int] | None = None  # its entry in the queue's heap, never behind its turn

    @property
    def turn(self) -> Turn:
        return -self.band, self.counter, -self.lift

    def first(self) -> T:
        """The first item; there is one."""
        while (top := self.order[0])[0] != self.items.get(top[1]):
            heapq.heappop(self.order)
        return top[1]


class FairQueue(Generic[T]):
    """By priority and then first in, first out within a tenant; between tenants the lowest counter first.

    Of equal counters the one goes first that was lower before it was raised, then the oldest item. Tenants of a higher
    band come before all of a lower one, however little those got; priority counts within a tenant only. Finding the
    next few items costs O(log tenants) each, however many wait.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self.prices = prices or Prices()
        self.changes = 0  # how many items were added or removed
        self._shares: dict[str, _Share[T]] = {}
        self._waiting: dict[str, _Share[T]] = {}
        self._newest: deque[T] = deque(maxlen=NEWEST)
        self._emptied = ""  # the tenant whose queue emptied last
        self._size = 0
        self._parts: set[T] = set()
        self._back = count(1)
        self._front = count(-1, -1)
        # Tenants by turn. A counter mostly rises, so an entry may be before its tenant's turn (it is moved when it
        # comes up), never behind it; entries that a share no longer names are dropped.
        self._turns: list[tuple[Turn, int, str]] = []

    def __len__(self) -> int:
        return self._size

    def __contains__(self, item: T) -> bool:
        share = self._waiting.get(item.tenant)
        return share is not None and item in share.items

    @property
    def counted(self) -> int:
        """How many items wait that are no parts of requests that were taken before."""
        return self._size - len(self._parts)

    def waiting(self, tenant: str) -> int:
        """How many items of `tenant` wait."""
        share = self._waiting.get(tenant)
        return len(share.items) if share else 0

    @property
    def waiting_tenants(self) -> KeysView[str]:
        """The tenants of which one waits."""
        return self._waiting.keys()

    def counter(self, tenant: str) -> int:
        """The weighted service of `tenant`; 0 for an unknown one."""
        share = self._shares.get(tenant)
        return share.counter if share else 0

    def turn(self, tenant: str) -> Turn:
        """The place of `tenant`, which has had an item here, in the order of turns."""
        return self._shares[tenant].turn

    def push(self, item: T, *, front: bool = False, is_part: bool = False) -> None:
        """Add `item` behind those of its tenant's with its priority; an idle tenant's counter is raised to the floor.

        At the front for what was admitted before: its tenant wasn't idle, so its counter stays. While it waits, one
        that `is_part` of a request that was taken before isn't among those `counted`.
        """
        share = self._shares.setdefault(item.tenant, _Share(item.weight, item.band))
        share.weight, share.band = item.weight, item.band
        if not share.items:
            share.order.clear()
            if not front:
                share.lift = max(0, self._floor(item.band) - share.counter)
                share.counter += share.lift
            self._waiting[item.tenant] = share
        arrival = next(self._front) if front else next(self._back)
        share.items[item] = place = -item.priority, arrival
        heapq.heappush(share.order, (place, item))
        self._size += 1
        if is_part:
            self._parts.add(item)
        self.changes += 1
        self._newest.append(item)
        self._enter(item.tenant, share)

    def pass_through(self, item: T) -> None:
        """Do what `push` and `remove` of `item` together do, where none waits."""
        share = self._shares.setdefault(item.tenant, _Share(item.weight, item.band))
        share.weight, share.band = item.weight, item.band
        share.lift = max(0, self._floor(item.band) - share.counter)
        share.counter += share.lift
        self._emptied = item.tenant
        self.changes += 2

    def newest(self) -> list[T]:
        """Return the first items of their tenants among the last few that were added, the newest first."""
        return [item for item in reversed(self._newest) if item in self and self._waiting[item.tenant].first() is item]

    def peek(self) -> T | None:
        """Return the next item, or None when none waits."""
        return next(iter(self.heads(1)), None)

    def heads(self, most: int | None = None) -> list[T]:
        """Return the first item of each tenant in the order of their turns, of the first `most` tenants."""
        found: dict[str, tuple[Turn, int, str]] = {}
        wanted = len(self._waiting) if most is None else min(most, len(self._waiting))
        while len(found) < wanted:
            turn, arrival, tenant = entry = heapq.heappop(self._turns)
            share = self._waiting.get(tenant)
            if share is None or share.entry != (turn, arrival) or tenant in found:
                continue
            if (now := _entry(share)) > (turn, arrival):
                self._add(tenant, share, now)
            else:
                found[tenant] = entry
        for entry in found.values():
            heapq.heappush(self._turns, entry)
        return [self._waiting[tenant].first() for tenant in found]

    def behind(self, item: T) -> Iterator[T]:
        """Yield the items that give their places to `item`, which doesn't wait yet, before it is refused.

        Of the lowest band first. Of a lower band they are all, since those wait for it in any case; of its own, those
        of each tenant with more than one whose queue is longer, for their weights, than that of `item` with it. The
        longest queue is first, and of each the last item; none is a part, though parts count.
        """
        own = self.waiting(item.tenant) + 1
        behind = [
            share
            for share in self._waiting.values()
            if share.band < item.band
            or (
                share.band == item.band and len(share.items) > 1 and len(share.items) * item.weight > own * share.weight
            )
        ]
        for share in sorted(behind, key=lambda share: (share.band, -len(share.items) / share.weight)):
            last_first = sorted(share.items, key=share.items.__getitem__, reverse=True)
            yield from (one for one in last_first if one not in self._parts)

    def remove(self, item: T) -> bool:
        """Remove `item`; False when it wasn't waiting."""
        if item not in self:
            return False
        share = self._shares[item.tenant]
        del share.items[item]
        self._size -= 1
        self._parts.discard(item)
        self.changes += 1
        if share.items:
            self._enter(item.tenant, share)  # of a lower priority an older one may be first now
        else:
            share.order.clear()
            share.entry = None
            del self._waiting[item.tenant]
            self._emptied = item.tenant
            if not self._waiting:
                self._turns.clear()
        return True

    def charge(self, tenant: str, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """Add service to the counter of `tenant`; negative counts take back what was charged and never computed."""
        prices = self.prices
        cost = prompt * prices.prompt + cached * prices.cached + output * prices.output
        share = self._shares[tenant]
        share.counter += cost * 1_000_000 // share.weight
        if cost < 0 and share.items:
            self._enter(tenant, share)

    def prune(self, active: Container[str]) -> None:
        """Forget idle tenants with counters at or below the floor, to which a return would raise them anyway."""
        floors: dict[int, int] = {}
        for tenant, share in list(self._shares.items()):
            if share.items or tenant in active or tenant == self._emptied:
                continue
            if share.band not in floors:
                floors[share.band] = self._floor(share.band)
            if share.counter <= floors[share.band]:
                del self._shares[tenant]

    def tenants(self) -> int:
        """How many tenants are remembered."""
        return len(self._shares)

    def check(self) -> None:
        """Raise AssertionError unless the order of turns is what sorting all tenants gives."""
        assert self._size == sum(len(share.items) for share in self._waiting.values())
        assert all(part in self for part in self._parts)
        assert all(share.items for share in self._waiting.values())
        for share in self._waiting.values():
            assert share.entry is not None
            assert share.entry <= _entry(share), "a tenant is behind its turn"
            assert share.items[share.first()] == min(share.items.values())
        expected = sorted(self._waiting.values(), key=_entry)
        assert self.heads() == [share.first() for share in expected]

    def _enter(self, tenant: str, share: _Share[T]) -> None:
        """Let the heap have an entry of `tenant` that is not behind its turn."""
        now = _entry(share)
        if share.entry is None or now < share.entry:
            self._add(tenant, share, now)

    def _add(self, tenant: str, share: _Share[T], entry: tuple[Turn, int]) -> None:
        share.entry = entry
        heapq.heappush(self._turns, (*entry, tenant))

    def _floor(self, band: int) -> int:
        """The counter of a newcomer: the lowest of the tenants of its band that wait, else that of the queue that
        emptied last.
        """
        waiting = [share.counter for share in self._waiting.values() if share.band == band]
        return min(waiting) if waiting else self.counter(self._emptied)


def _entry(share: _Share[T]) -> tuple[Turn, int]:
    """The place of a tenant that waits, with the arrival of its first item."""
    return share.turn, share.items[share.first()][1]
