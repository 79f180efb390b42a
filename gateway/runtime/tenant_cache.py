"""A bounded memory of what tenants asked lately, of which none loses its own because another asks much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar
from uuid import UUID

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SHARE = 16  # so much of the fullest tenant's part goes at once: looking for it takes all tenants


class TenantCache(Generic[K, V]):
    """At most `most` entries together; where there are more, the tenant with the most loses those that it used least
    recently.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: dict[UUID, OrderedDict[K, V]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, tenant: UUID, key: K) -> V | None:
        """Return what was kept for that tenant's key, None where nothing is."""
        part = self._parts.get(tenant)
        if part is None or key not in part:
            return None
        part.move_to_end(key)
        return part[key]

    def keep(self, tenant: UUID, key: K, value: V) -> None:
        """Keep `value` for that tenant's key."""
        part = self._parts.setdefault(tenant, OrderedDict())
        self._count += key not in part
        part[key] = value
        part.move_to_end(key)
        if self._count > self._most:
            self._shrink()

    def _shrink(self) -> None:
        tenant = max(self._parts, key=lambda one: len(self._parts[one]))
        part = self._parts[tenant]
        gone = -(-len(part) // SHARE)
        for _ in range(gone):
            part.popitem(last=False)
        self._count -= gone
        if not part:
            del self._parts[tenant]
