"""The engines behind this gateway: one per replica of the catalogue, opened and closed as the catalogue changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

import structlog

from base.home import worker_endpoint
from fleet.node_keys import gateway_key
from fleet.remote_engines import REMOTE, open_deployment
from gateway.runtime.engine_entry import CHUNK_TOKENS, AdapterPlace, EngineEntry
from gateway.runtime.flight import Flight
from gateway.runtime.metrics import Metrics
from inference.engine import Engine, EngineSpec
from inference.types import EngineInfo, Feature, Health
from routing.catalogue import ADAPTABLE, DeploymentEntry, ReplicaEntry
from routing.prefix import Digest

HEALTH_TIMEOUT = 2.0
CONNECT_INTERVAL = 0.1
TTFT_LEAST = 5

log = structlog.get_logger(__name__)


def spec_of(deployment: DeploymentEntry, replica: ReplicaEntry) -> EngineSpec:
    """Return how to reach the engine of `deployment` at `replica`."""
    identifier, node = str(deployment.id), replica.node
    if deployment.backend == REMOTE:
        return EngineSpec(identifier, REMOTE, deployment.source, deployment.options, deployment.credential)
    if deployment.backend != "worker" or node is None:
        return EngineSpec(deployment=identifier, backend=deployment.backend, options=deployment.options)
    if not node.address:
        return EngineSpec(deployment=identifier, backend="worker", endpoint=worker_endpoint(node.name))
    return EngineSpec(
        deployment=identifier,
        backend="worker",
        endpoint=node.address,
        server_key=node.public_key,
        secret_key=gateway_key(),
    )


class Engines:
    """The open engines by replica id. `usable` and `load` answer routing from the last health, without waiting.

    An engine whose replica left the catalogue takes nothing new and is closed when nothing runs on it any more.
    """

    def __init__(self, metrics: Metrics, opener: Callable[[EngineSpec], Engine] = open_deployment) -> None:
        self._metrics = metrics
        self._open = opener
        self._entries: dict[UUID, EngineEntry] = {}
        self._retired: list[EngineEntry] = []
        self._unopened: dict[UUID, str] = {}  # why, by replica

    def get(self, replica: UUID) -> Engine | None:
        """Return the replica's engine, or None when the catalogue doesn't have it."""
        entry = self._entries.get(replica)
        return entry.engine if entry else None

    def of(self, deployment: UUID) -> tuple[Engine, ...]:
        """Return the engines of the deployment's replicas, also those about to be closed: they may know more."""
        return tuple(entry.engine for entry in self._all() if entry.deployment.id == deployment)

    def entries(self) -> tuple[EngineEntry, ...]:
        """Every open engine."""
        return tuple(self._entries.values())

    def heard(self) -> set[str]:
        """Return the names of the nodes whose workers answer."""
        return {entry.replica.place for entry in self._entries.values() if entry.health.revision} - {""}

    def context_of(self, model: str) -> int | None:
        """Return the greatest context in which some replica serves `model` now; None when none does."""
        return max((info.max_context for info in self._infos(model)), default=None)

    def features_of(self, model: str) -> frozenset[Feature]:
        """Return what all replicas that serve `model` now can do."""
        found = [info.features for info in self._infos(model)]
        return frozenset.intersection(*found) if found else frozenset()

    def max_output_of(self, model: str) -> int | None:
        """Return the greatest bound of an answer where replicas serve `model` now; None where the context is it."""
        bounds = [info.max_output for info in self._infos(model)]
        return max(bounds) if bounds and all(bounds) else None

    def adapter_state(self, base: str, adapter: str) -> str | None:
        """Return why no replica of `base` can serve its adapter, "" where one can, None where none has read it yet."""
        states = [info.adapters[adapter] for info in self._infos(base) if adapter in info.adapters]
        return None if not states else "" if "" in states else states[0]

    def adapter_places(self, base: str, adapter: str) -> list[AdapterPlace]:
        """Return how an adapter of `base` is at each replica that may serve it."""
        entries = (entry for entry in self._entries.values() if entry.deployment.model == base)
        return [entry.adapter(adapter) for entry in entries if entry.deployment.backend in ADAPTABLE]

    def _infos(self, model: str) -> list[EngineInfo]:
        infos = [entry.engine.info for entry in self._entries.values() if entry.deployment.model == model]
        return [info for info in infos if info is not None]

    def usable(self, replica: UUID) -> str:
        """Return why `replica` can't take work now, "" when it can."""
        entry = self._entries.get(replica)
        if entry is None:
            return self._unopened.get(replica, "not open")
        return entry.obstacle

    def refuses(self, replica: UUID, adapter: str) -> str:
        """Return why the replica can't serve the adapter, as its worker says; "" where it can or hasn't read it yet."""
        entry = self._entries.get(replica)
        info = None if entry is None else entry.engine.info
        reason = "" if info is None else info.adapters.get(adapter, "")
        return f"the adapter can't be served: {reason}" if reason else ""

    def load(self, replica: UUID) -> int:
        """Return how many tokens the replica has to compute, as far as that is known."""
        entry = self._entries.get(replica)
        return 0 if entry is None else entry.load

    def context(self, replica: UUID) -> int | None:
        """Return the context in which the replica serves, None where that isn't known."""
        entry = self._entries.get(replica)
        info = None if entry is None else entry.engine.info
        return None if info is None else info.max_context

    def matched(self, replica: UUID, prefix: Sequence[Digest]) -> int:
        """Return how many tokens of a prompt with these digests the replica has probably cached."""
        entry = self._entries.get(replica)
        return 0 if entry is None else CHUNK_TOKENS * entry.prefixes.matched(prefix)

    def ttft_ms(self, deployment: UUID, percentile: int, adapter: str = "") -> int | None:
        """Return that percentile of the time to first token that the deployment's latest requests with that adapter, or
        with its base alone, took from here; None where fewer than `TTFT_LEAST` did in the last minutes.
        """
        entries = (entry for entry in self._entries.values() if entry.deployment.id == deployment)
        times = sorted(time for entry in entries for time in entry.ttfts(adapter))
        if len(times) < TTFT_LEAST:
            return None
        return times[-(-len(times) * percentile // 100) - 1]

    def enter(
        self,
        replica: UUID,
        prompt_tokens: int,
        tenant: UUID,
        *,
        adapter: str = "",
        matched: int = 0,
        prefix: tuple[Digest, ...] = (),
    ) -> Flight | None:
        """Count a tenant's request on the replica until the flight's close; None when the catalogue doesn't have it."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        return Flight(entry, prompt_tokens, tenant, adapter=adapter, matched=matched, prefix=prefix)

    def any_ready(self) -> bool:
        """True when some replica takes work."""
        return any(not entry.obstacle for entry in self._entries.values())

    def follow(self, deployments: Iterable[DeploymentEntry], unfit: Mapping[UUID, str] | None = None) -> None:
        """Have exactly the engines of the replicas of `deployments` open, leaving those that didn't change alone.

        Deployments in `unfit` take no work, for the reason given there.

        Waits for none of them: a new one takes work once `look` has found it ready. One that can't be opened as it is
        written in the catalogue takes none, and leaves the others alone.
        """
        wanted = {replica.id: (entry, replica) for entry in deployments for replica in entry.replicas}
        specs = {identifier: spec_of(*pair) for identifier, pair in wanted.items()}
        for identifier, entry in list(self._entries.items()):
            if specs.get(identifier) != entry.spec:
                self._retired.append(self._entries.pop(identifier))
                self._metrics.replicas.gone(entry.deployment.name, entry.replica.place)
            else:
                entry.deployment, entry.replica = wanted[identifier]
        self._unopened = {}
        for identifier, (deployment, replica) in wanted.items():
            spec = specs[identifier]
            if identifier not in self._entries:
                try:
                    engine = self._open(spec)
                except Exception as error:
                    log.exception("deployment_not_opened", deployment=deployment.name, node=replica.place)
                    why = error if isinstance(error, ValueError) else type(error).__name__
                    self._unopened[identifier] = f"can't be opened: {why}"
                else:
                    self._entries[identifier] = EngineEntry(deployment, replica, spec, engine)
        for entry in self._entries.values():
            entry.unfit = (unfit or {}).get(entry.deployment.id, "")

    async def look(self) -> None:
        """Ask every engine for its health, all at once, and close those that nobody needs any more."""
        await asyncio.gather(*(self._refresh(entry) for entry in self.entries()))
        await self._close_retired()

    @property
    def are_at_rest(self) -> bool:
        """Whether all of them take work and none has any: then there is less to see."""
        return all(
            not entry.obstacle and not entry.requests and not entry.health.running for entry in self._entries.values()
        )

    async def connected(self, seconds: float) -> bool:
        """Wait until every engine is ready; False when some aren't after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while any(entry.obstacle for entry in self._entries.values()):
                    await asyncio.sleep(CONNECT_INTERVAL)
                    await self.look()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close every engine."""
        entries = list(self._all())
        self._entries, self._retired = {}, []
        for entry in entries:
            await entry.engine.close()

    def _all(self) -> Iterator[EngineEntry]:
        yield from self._entries.values()
        yield from self._retired

    async def _close_retired(self) -> None:
        done = [entry for entry in self._retired if not entry.requests]
        self._retired = [entry for entry in self._retired if entry.requests]
        for entry in done:
            await entry.engine.close()

    async def _refresh(self, entry: EngineEntry) -> None:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):  # 3.11's wait_for can swallow the cancel that ends the loop
                health = await entry.engine.health()
        except TimeoutError:
            health = Health(ready=False, reason="no answer")
        except Exception as error:  # noqa: BLE001 - one sick engine must not hide the others
            health = Health(ready=False, reason=str(error) or type(error).__name__)
        if health.ready != entry.health.ready:
            event = "deployment_ready" if health.ready else "deployment_not_ready"
            log.info(event, deployment=entry.deployment.name, node=entry.replica.place)
        if health.ready and (not entry.health.ready or health.process != entry.health.process):
            # What failed is gone or mended. One worker may have followed another between two looks.
            entry.breaker.reset()
        entry.health = health
        if (info := entry.engine.info) is not None and info.kv_blocks:
            entry.prefixes.most = max(1, info.kv_blocks * info.block_size // CHUNK_TOKENS)
        if self._entries.get(entry.replica.id) is entry:
            is_open = entry.breaker.state != "closed"
            place = entry.replica.place
            self._metrics.replicas.seen(entry.deployment.name, place, health, is_circuit_open=is_open)
