"""How long answers usually are: a tenant's own of a model, or in general; read at most once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, NamedTuple
from uuid import UUID

from base.database.threads import DatabaseThreads
from billing.selectors.usage import Lengths, usual_lengths
from gateway.runtime.tenant_cache import TenantCache

FRESH_SECONDS = 300.0
LEAST = 20
"""Requests by which lengths are known; with fewer they are taken from more than the tenant's own, or assumed."""
MOST_TENANTS = 4096
EVERYBODY = UUID(int=0)
ASSUMED = Lengths(0, 256, 1024)


class Usual(NamedTuple):
    """Lengths, and whose they are: the tenant's own, all tenants' of that model, or assumed."""

    lengths: Lengths
    basis: Literal["own", "model", "assumed"]


class UsualLengths:
    """The lengths by model of each tenant that asked lately, and of all together, kept for `FRESH_SECONDS`."""

    def __init__(self, threads: DatabaseThreads, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._known: TenantCache[str, tuple[float, Mapping[str, Lengths]]] = TenantCache(MOST_TENANTS)

    async def of(self, tenant: UUID, model: str) -> Usual:
        """Return the usual lengths of the model's answers to that tenant."""
        own = (await self._read(tenant)).get(model)
        if own is not None and own.requests >= LEAST:
            return Usual(own, "own")
        general = (await self._read(EVERYBODY)).get(model)
        if general is not None and general.requests >= LEAST:
            return Usual(general, "model")
        return Usual(ASSUMED, "assumed")

    async def _read(self, tenant: UUID) -> Mapping[str, Lengths]:
        known = self._known.get(tenant, "")
        if known is not None and self._clock() - known[0] < FRESH_SECONDS:
            return known[1]
        read = partial(usual_lengths, None if tenant == EVERYBODY else tenant)
        found = await self._threads.run(read, owner=tenant)
        self._known.keep(tenant, "", (self._clock(), found))
        return found
