"""What the gateway that answers a request knows of its deployments, for pages and the management API.

The ASGI lifespan leaves the runtime in the state of every request's scope; under WSGI and in tests there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from django.http import HttpRequest

from routing import catalogue
from routing.catalogue import Catalogue

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """A deployment's engine as this process last saw it, for operators: `reason` may name paths."""

    is_ready: bool
    reason: str
    running: int
    waiting: int
    kv_used: float  # share of KV blocks in use
    shares_prefixes: bool  # between tenants


@dataclass(frozen=True, slots=True)
class Live:
    """The gateway of this process, or what can be said without one."""

    runtime: Runtime | None

    def deployment_states(self) -> dict[UUID, DeploymentState] | None:
        """Return the state of each open deployment, or None in a process that serves no data plane."""
        if self.runtime is None:
            return None
        return {
            entry.deployment.id: DeploymentState(
                is_ready=not entry.obstacle,
                reason=": ".join(filter(None, (entry.obstacle, entry.health.detail))),
                running=entry.health.running,
                waiting=entry.health.waiting,
                kv_used=entry.health.kv_used,
                shares_prefixes=entry.engine.info is not None and entry.engine.info.shares_prefixes,
            )
            for entry in self.runtime.engines.entries()
        }

    def catalogue(self) -> Catalogue:
        """Return the catalogue that requests are routed by now, from the database where no gateway runs here."""
        return catalogue.load() if self.runtime is None else self.runtime.snapshot.catalogue

    def usable(self, deployment: UUID) -> str:
        """Return why `deployment` can't take work now, or nothing; without a gateway nothing is known against it."""
        return "" if self.runtime is None else self.runtime.engines.usable(deployment)

    def load(self, deployment: UUID) -> int:
        """Return how many requests the deployment has, 0 where that is unknown."""
        if self.runtime is None or self.runtime.engines.get(deployment) is None:
            return 0
        return self.runtime.engines.load(deployment)

    def context_of(self, model: str) -> int | None:
        """Return the context in which `model` is served now, or None where that is unknown."""
        return None if self.runtime is None else self.runtime.engines.context_of(model)


def live_of(request: HttpRequest) -> Live:
    """Return what the gateway that answers `request` knows."""
    scope = getattr(request, "scope", {})
    return Live(scope.get("state", {}).get("runtime"))
