"""The data plane as pages see it: this process' own, or another's over HTTP at SLUICE_DATA_PLANE."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Protocol
from urllib.request import Request
from uuid import UUID

import msgspec
import structlog
from django.http import HttpRequest
from django.utils import timezone

from base.http import open_directly
from billing.rating import CardPrices
from billing.selectors.prices import prices_at
from gateway.runtime.engines import AdapterPlace, EngineEntry
from gateway.runtime.readiness import operator_token
from inference.types import Work
from routing import catalogue
from routing.catalogue import Catalogue
from routing.prefix import Digest

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One engine of a deployment: `obstacle` is why it takes no work, `details` what its engine says of itself.

    `remark` is what is worth knowing of one that takes work all the same, `engine` why the engine by itself isn't
    ready, as while it loads, whether or not its model has a price.
    """

    node: str
    obstacle: str
    remark: str
    detail: str
    context: int | None
    details: Mapping[str, str]
    engine: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """A deployment's engines as this process last saw them, for operators: `reason` may name paths.

    It `is_ready` when one of its `replicas` is; `kv_used` is the share of KV blocks in use of the fullest, `kv_cached`
    what there only keeps prefixes. `work` is that of all replicas together, None where no engine tells, `details` what
    the engines announced of themselves.
    """

    is_ready: bool
    reason: str
    running: int
    waiting: int
    kv_used: float
    shares_prefixes: bool  # between tenants
    replicas: tuple[ReplicaState, ...] = ()
    kv_cached: float = 0.0
    work: Work | None = None
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterState:
    """An adapter at each replica of its base, and why none can serve it: "" where one can, None where none has read it
    yet.
    """

    places: list[AdapterPlace]
    obstacle: str | None


class Standing(msgspec.Struct, frozen=True):
    """A gateway's knowledge of its engines at one moment."""

    deployments: dict[UUID, DeploymentState]
    obstacles: dict[UUID, str]  # replica → why it can't take work
    adapters: dict[str, AdapterState]  # by id


class DataPlane(Protocol):
    """The data plane as a process of pages asks it."""

    def standing(self) -> Standing | None:
        """Return what a gateway knows now, None where none answers."""
        ...

    def explain(self, question: bytes) -> bytes:
        """Return a gateway's answer to a dry run, both as JSON; OSError where none answers."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """The gateway of this process, or `far` the data plane's. Under WSGI and in tests there is neither: then states are
    unknown, and catalogue and prices come from the database.
    """

    runtime: Runtime | None = None
    far: DataPlane | None = None

    def deployment_states(self) -> dict[UUID, DeploymentState] | None:
        """Return the state of each open deployment, or None where no gateway tells."""
        if self.far is not None:
            return None if (standing := self.far.standing()) is None else standing.deployments
        if self.runtime is None:
            return None
        by_deployment: dict[UUID, list[EngineEntry]] = {}
        for entry in self.runtime.engines.entries():
            by_deployment.setdefault(entry.deployment.id, []).append(entry)
        return {deployment: _state(entries) for deployment, entries in by_deployment.items()}

    def adapter(self, base: str, adapter: str) -> AdapterState | None:
        """Return how the adapter of `base` with that id is, None where no gateway tells."""
        if self.far is not None:
            standing = self.far.standing()
            return None if standing is None else standing.adapters.get(adapter, AdapterState([], None))
        if self.runtime is None:
            return None
        engines = self.runtime.engines
        return AdapterState(engines.adapter_places(base, adapter), engines.adapter_state(base, adapter))

    def catalogue(self) -> Catalogue:
        """Return the catalogue that requests are routed by now, from the database where no gateway runs here."""
        return catalogue.load() if self.runtime is None else self.runtime.catalogue.snapshot.catalogue

    def prices(self) -> Mapping[str, CardPrices]:
        """Return the prices in force by rate card, from the database where no gateway runs here."""
        return prices_at(timezone.now()) if self.runtime is None else self.runtime.catalogue.snapshot.prices

    def usable(self, replica: UUID) -> str:
        """Return why `replica` can't take work now, or nothing; where no gateway tells nothing is known against it."""
        if self.far is not None:
            return "" if (standing := self.far.standing()) is None else standing.obstacles.get(replica, "not open")
        return "" if self.runtime is None else self.runtime.engines.usable(replica)

    def refuses(self, replica: UUID, adapter: str) -> str:
        """Return why the replica doesn't serve that adapter, or nothing."""
        return "" if self.runtime is None else self.runtime.engines.refuses(replica, adapter)

    def load(self, replica: UUID) -> int:
        """Return how many tokens the replica has to compute, 0 where that is unknown."""
        return 0 if self.runtime is None else self.runtime.engines.load(replica)

    def context(self, replica: UUID) -> int | None:
        """Return the context in which the replica serves, or None where that is unknown."""
        return None if self.runtime is None else self.runtime.engines.context(replica)

    def matched(self, replica: UUID, prefix: Sequence[Digest]) -> int:
        """Return how many tokens of a prompt with these digests the replica has probably cached."""
        return 0 if self.runtime is None else self.runtime.engines.matched(replica, prefix)

    def ttft_ms(self, deployment: UUID, percentile: int, adapter: str = "") -> int | None:
        """Return the time to first token of the deployment's latest requests with that adapter, if it is known."""
        return None if self.runtime is None else self.runtime.engines.ttft_ms(deployment, percentile, adapter)


def _state(entries: list[EngineEntry]) -> DeploymentState:
    ready = [entry for entry in entries if not entry.obstacle]
    reasons = []
    for entry in entries:
        if said := entry.obstacle or entry.remark:
            where = entry.replica.place if len(entries) > 1 else ""
            reasons.append(": ".join(filter(None, (where, said, entry.health.detail))))
    fullest = max(entries, key=lambda entry: entry.health.kv_used)
    works = [entry.health.work for entry in entries if entry.health.work is not None]
    infos = [info for entry in entries if (info := entry.engine.info) is not None]
    return DeploymentState(
        is_ready=bool(ready),
        reason="; ".join(reasons),
        running=sum(entry.health.running for entry in entries),
        waiting=sum(entry.health.waiting for entry in entries),
        kv_used=fullest.health.kv_used,
        shares_prefixes=any(info.shares_prefixes for info in infos),
        replicas=tuple(_replica(entry) for entry in entries),
        kv_cached=fullest.health.kv_cached,
        work=sum(works[1:], works[0]) if works else None,
        details=infos[0].details if infos else {},
    )


def _replica(entry: EngineEntry) -> ReplicaState:
    info = entry.engine.info
    return ReplicaState(
        node=entry.replica.place,
        obstacle=entry.obstacle,
        remark=entry.remark,
        detail=entry.health.detail,
        context=None if info is None else info.max_context,
        details={} if info is None else info.details,
        engine="" if entry.health.ready else entry.health.reason or "not ready",
    )


def standing_of(runtime: Runtime) -> Standing:
    """Return what this process' gateway knows now."""
    live, catalogue = Live(runtime), runtime.catalogue.snapshot.catalogue
    adapters = {
        served[0].adapter: state
        for name, entry in catalogue.models.items()
        if entry.base and (served := catalogue.deployments.get(name))
        if (state := live.adapter(entry.base, served[0].adapter)) is not None
    }
    replicas = [replica.id for entry in catalogue.all_deployments() for replica in entry.replicas]
    return Standing(live.deployment_states() or {}, {replica: live.usable(replica) for replica in replicas}, adapters)


def live_of(request: HttpRequest) -> Live:
    """Return what is known where `request` is answered."""
    state = getattr(request, "scope", {}).get("state", {})
    return Live(state.get("runtime"), state.get("data_plane"))


STANDING, EXPLAIN = "/internal/standing", "/internal/explain"
SECONDS = 3.0
"""A page waits so long for a gateway, and shows what it can without."""
FRESH_SECONDS = 1.0

log = structlog.get_logger(__name__)


class HTTPDataPlane:
    """Asks the gateway at `base_url`; what it knows is kept for `FRESH_SECONDS`. For threads."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._standing: Standing | None = None
        self._good_until = 0.0
        self._looking = threading.Lock()

    def standing(self) -> Standing | None:
        """Return what a gateway knows now, None where none answers."""
        with self._looking:  # of many pages at once one asks
            if time.monotonic() >= self._good_until:
                try:
                    self._standing = msgspec.json.decode(self._ask(STANDING), type=Standing)
                except (OSError, msgspec.MsgspecError) as error:
                    log.warning("data_plane_silent", address=self._base_url, error=str(error))
                    self._standing = None
                self._good_until = time.monotonic() + FRESH_SECONDS
            return self._standing

    def explain(self, question: bytes) -> bytes:
        """Return a gateway's answer to a dry run, both as JSON; OSError where none answers."""
        return self._ask(EXPLAIN, question)

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"authorization": f"Bearer {operator_token()}", "content-type": "application/json"}
        request = Request(self._base_url + path, body, headers)  # noqa: S310 - the operator's own address
        try:
            with open_directly(request, timeout=SECONDS) as answer:
                found: bytes = answer.read()
        except HTTPException as error:  # it ended in the middle of its answer
            raise OSError(str(error) or type(error).__name__) from error
        return found
