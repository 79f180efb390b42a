"""How many requests of a tenant are in this process at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from billing.limits.types import Limited
from gateway.errors.faults import refusal_of_limit
from gateway.runtime.principal import Principal

FULL_RETRY_US = 1_000_000


class ConcurrencyLimiter:
    """A cap on each tenant's requests in this process, so that a flood costs neither tokenising nor a round trip."""

    def __init__(self) -> None:
        self._inside: Counter[UUID] = Counter()

    def __len__(self) -> int:
        return self._inside.total()

    def inside(self, tenant: UUID) -> int:
        """How many requests of `tenant` are in this process."""
        return self._inside[tenant]

    def enter(self, principal: Principal) -> None:
        """Count one more request of the principal's tenant, or raise a 429 Refusal at its plan's concurrency."""
        if self._inside[principal.tenant] >= principal.concurrency:
            raise refusal_of_limit(Limited("concurrency", FULL_RETRY_US, ()))
        self._inside[principal.tenant] += 1

    def leave(self, principal: Principal) -> None:
        """Count one less."""
        self._inside[principal.tenant] -= 1
        if not self._inside[principal.tenant]:
            del self._inside[principal.tenant]

    @contextmanager
    def admitting(self, principal: Principal) -> Iterator[None]:
        """Be inside from here on; left again only when the block raises."""
        self.enter(principal)
        try:
            yield
        except BaseException:
            self.leave(principal)
            raise
