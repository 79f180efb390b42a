"""Fairness between tenants by weighted virtual token counters, and the bounds of the waiting queue.

Each tenant has a counter of the service that it got, divided by its weight; of the tenants with waiting requests, the
one with the lowest counter is served next. The counter of a tenant that was idle is raised to the lowest of those when
it comes back, so that idle time earns nothing. Counters are integers in millionths of a priced token and never rebased.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

from inference.errors import DrainingError, OverloadedError


class Queued(Protocol):
    """An item of a fair queue: it belongs to a tenant with a weight in thousandths (1000 = 1.0) and a priority."""

    @property
    def tenant(self) -> str: ...

    @property
    def weight(self) -> int: ...

    @property
    def priority(self) -> int: ...


T = TypeVar("T", bound=Queued)


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


@dataclass(slots=True)
class _Share(Generic[T]):
    weight: int
    priority: int
    counter: int = 0
    items: OrderedDict[T, int] = field(default_factory=OrderedDict)  # item → arrival number


class FairQueue(Generic[T]):
    """First in, first out within a tenant; the lowest counter first between tenants (ties: the oldest head).

    Tenants of a higher priority come before all of a lower one, however little those got.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        self.prices = prices or Prices()
        self._shares: dict[str, _Share[T]] = {}
        self._waiting: dict[str, _Share[T]] = {}
        self._emptied = ""  # the tenant whose queue emptied last
        self._size = 0
        self.changes = 0  # how many items were added or removed
        self._back = count(1)
        self._front = count(-1, -1)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, item: T) -> bool:
        share = self._waiting.get(item.tenant)
        return share is not None and item in share.items

    def waiting(self, tenant: str) -> int:
        """How many items of `tenant` wait."""
        share = self._waiting.get(tenant)
        return len(share.items) if share else 0

    def counter(self, tenant: str) -> int:
        """The weighted service of `tenant`; 0 for an unknown one."""
        share = self._shares.get(tenant)
        return share.counter if share else 0

    def push(self, item: T, *, front: bool = False) -> None:
        """Add `item` at the back of its tenant's queue; the counter of a tenant that was idle is raised to the floor.

        At the front for what was admitted before: its tenant wasn't idle, so its counter stays.
        """
        share = self._shares.setdefault(item.tenant, _Share(item.weight, item.priority))
        share.weight, share.priority = item.weight, item.priority
        if not share.items:
            if not front:
                share.counter = max(share.counter, self._floor(item.priority))
            self._waiting[item.tenant] = share
        share.items[item] = next(self._front) if front else next(self._back)
        share.items.move_to_end(item, last=not front)
        self._size += 1
        self.changes += 1

    def peek(self) -> T | None:
        """Return the next item, or None when none waits."""
        if not self._waiting:
            return None
        return next(iter(min(self._waiting.values(), key=_turn).items))

    def heads(self) -> Iterator[T]:
        """Yield the first item of each tenant, in the order of their turns."""
        for share in sorted(self._waiting.values(), key=_turn):
            yield next(iter(share.items))

    def remove(self, item: T) -> bool:
        """Remove `item`; False when it wasn't waiting."""
        if item not in self:
            return False
        share = self._shares[item.tenant]
        del share.items[item]
        self._size -= 1
        self.changes += 1
        if not share.items:
            del self._waiting[item.tenant]
            self._emptied = item.tenant
        return True

    def charge(self, tenant: str, *, prompt: int = 0, cached: int = 0, output: int = 0) -> None:
        """Add service to the counter of `tenant`; negative counts take back what was charged and never computed."""
        prices = self.prices
        cost = prompt * prices.prompt + cached * prices.cached + output * prices.output
        share = self._shares[tenant]
        share.counter += cost * 1_000_000 // share.weight

    def prune(self, active: Container[str]) -> None:
        """Forget idle tenants with counters at or below the floor, to which a return would raise them anyway."""
        for tenant, share in list(self._shares.items()):
            if (
                share.counter <= self._floor(share.priority)
                and not share.items
                and tenant not in active
                and tenant != self._emptied
            ):
                del self._shares[tenant]

    def tenants(self) -> int:
        """How many tenants are remembered."""
        return len(self._shares)

    def _floor(self, priority: int) -> int:
        """The counter of a newcomer: the lowest of the tenants of its priority that wait, else that of the queue that
        emptied last.
        """
        waiting = [share.counter for share in self._waiting.values() if share.priority == priority]
        return min(waiting) if waiting else self.counter(self._emptied)


def _turn(share: _Share[T]) -> tuple[int, int, int]:
    return -share.priority, share.counter, next(iter(share.items.values()))


class WaitingQueue(Generic[T]):
    """A fair queue with a bound for all and one for each tenant; it takes no new requests while `draining`.

    The bounds count waiting requests; one that comes back after a preemption is always taken.
    """

    def __init__(self, most: int, most_per_tenant: int, prices: Prices) -> None:
        self.queue: FairQueue[T] = FairQueue(prices)
        self.draining = False
        self.most = most
        self.most_per_tenant = most_per_tenant
        self._present: Counter[str] = Counter()  # requests of each tenant that haven't ended
        self._prune_at = 64

    def enter(self, item: T) -> None:
        """Queue a new request; raise `DrainingError` or `OverloadedError`."""
        if self.draining:
            raise DrainingError("the engine is about to stop")
        if len(self.queue) >= self.most:
            raise OverloadedError(f"{len(self.queue)} requests are waiting already")
        if self.queue.waiting(item.tenant) >= self.most_per_tenant:
            raise OverloadedError("too many requests of this tenant are waiting already", code="tenant_queue_full")
        self.queue.push(item)
        self._present[item.tenant] += 1

    def leave(self, item: T) -> None:
        """Count a request as ended; now and then forget tenants without requests."""
        self._present[item.tenant] -= 1
        if not self._present[item.tenant]:
            del self._present[item.tenant]
        if self.queue.tenants() > self._prune_at:
            self.queue.prune(self._present)
            self._prune_at = 2 * self.queue.tenants() + 64
