"""The engines behind this gateway, one per replica of the catalogue, opened and closed as it changes: each with its
breaker, its requests and their times to first token.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import structlog

from base.home import worker_endpoint
from fleet.nodes import gateway_key
from fleet.remote_engines import REMOTE, open_deployment
from gateway.runtime.metrics import Metrics
from inference.engine import Engine, EngineSpec
from inference.errors import DrainingError, EngineError, InvalidRequestError, OverloadedError, UnpreparedError
from inference.types import EngineInfo, Feature, Finished, FinishReason, Health
from routing.catalogue import ADAPTABLE, DeploymentEntry, ReplicaEntry
from routing.prefix import CHUNK_BYTES, Digest, PrefixIndex

# The breaker's.
FAILURES = 3
TENANTS = 2
FIRST_SECONDS = 5.0  # of its first wait
LONGEST_SECONDS = 60.0
PROOF_SECONDS = 1.0  # for which nobody else is sent where a request proves the engine


class Ticket(NamedTuple):
    """One tenant's request at one engine."""

    number: int
    tenant: UUID


class Breaker:
    """An engine that fails several tenants gets no requests for a while, then one a second as a proof.

    closed ── FAILURES in a row, of TENANTS ──▶ open ── the wait is over ──▶ half-open ── a request ends well ──▶ closed
                                                 ▲                              │
                                                 └─ TENANTS fail: twice the wait ┘

    What fails one tenant may be that tenant's own doing (a prompt, a schema, an adapter), so it takes the engine from
    nobody else, neither when the circuit is closed nor as a proof. What a client did wrong, and what the engine
    declined for lack of room, is no failure at all. Whether an engine can be reached is for its health to say.

    A proof that begins to answer lets others in beside it, since a long answer would keep them out for minutes; but
    only one that ends well clears what failed before. A proof that doesn't begin at once may wait for its own tenant's
    sake, or in a queue, and is joined by another after PROOF_SECONDS. Each request has a ticket: one sent before the
    circuit last opened says nothing of the engine as it is now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0  # since the last request that ended well
        self._failed: set[UUID] = set()  # the tenants that failed since then, or since it opened
        self._opened_at: float | None = None
        self._seconds = 0.0  # of its last wait; 0 while it is closed
        self._tickets = 0
        self._before = 0  # the last ticket of before it opened
        self._proof = 0  # the ticket of the latest request that proves it; 0 for none
        self._proof_until = 0.0

    @property
    def state(self) -> str:
        """One of "closed", "open" and "half-open"."""
        if not self._seconds:
            return "closed"
        return "half-open" if self._rest <= 0 else "open"

    @property
    def _rest(self) -> float:
        """The seconds that are left of its wait."""
        return 0.0 if self._opened_at is None else self._opened_at + self._seconds - self._clock()

    @property
    def obstacle(self) -> str:
        """Why no request may be sent now; empty when one may."""
        if (rest := self._rest) > 0:
            return f"circuit open after {self._failures} failures, next try in {rest:.0f} s"
        return "circuit half-open: a request is proving it" if self._is_proving else ""

    @property
    def remark(self) -> str:
        """A warning for operators about a replica that takes requests; empty without one."""
        if self.state != "half-open" or self._is_proving:
            return ""
        proves = "the next request proves it" if self._opened_at is not None else "no request has ended well yet"
        return f"circuit half-open after {self._failures} failures: {proves}"

    def enter(self, tenant: UUID) -> Ticket:
        """Return the ticket of a request that is sent now. Where the circuit waits for its proof, it is that, unless
        its tenant has failed one: whoever fails again and again would keep all others out.
        """
        self._tickets += 1
        if self._opened_at is not None and not self._is_proving and tenant not in self._failed:
            self._proof, self._proof_until = self._tickets, self._clock() + PROOF_SECONDS
        return Ticket(self._tickets, tenant)

    @property
    def _is_proving(self) -> bool:
        return self._proof != 0 and self._clock() < self._proof_until

    def leave(self, ticket: Ticket) -> None:
        """Note that a request ended; one that said nothing of the engine leaves the proof to another."""
        if ticket.number == self._proof:
            self._proof = 0

    def began(self, ticket: Ticket) -> None:
        """Note that the engine begins to answer a request."""
        if ticket.number > self._before:
            self._opened_at, self._proof = None, 0

    def succeeded(self, ticket: Ticket) -> None:
        """Note that the engine answered a request to its end."""
        if ticket.number > self._before:
            self.reset()

    def reset(self) -> None:
        """Forget what failed."""
        self._failures, self._opened_at, self._seconds, self._proof = 0, None, 0.0, 0
        self._failed.clear()

    def failed(self, ticket: Ticket) -> None:
        """Note that the engine failed on a request."""
        if ticket.number <= self._before:
            return
        self._failures += 1
        self._failed.add(ticket.tenant)
        if self._failures < FAILURES or len(self._failed) < TENANTS:
            return
        self._seconds = min(2 * self._seconds or FIRST_SECONDS, LONGEST_SECONDS)
        self._opened_at, self._proof, self._before = self._clock(), 0, self._tickets
        self._failed.clear()


RUNNING_TOKENS = 64  # what a request costs others while it generates, as much as so many tokens of a prompt
CHUNK_TOKENS = CHUNK_BYTES // 4
PREFIX_CHUNKS = 16_384  # about a million tokens
TTFT_REQUESTS = 128  # the latest whose time to first token is known
TTFT_ADAPTERS = 256  # of so many of a replica's adapters, those that were asked last, these times are known
TTFT_SECONDS = 300.0  # older ones say nothing: who was too slow gets no requests by which to show that it is not


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """An adapter's state at one replica of its base: "ready", "refused", "loading" or "not ready", with the reason.

    A ready one that isn't `in_memory` is read when the next request wants it.
    """

    node: str
    state: str
    reason: str = ""
    in_memory: bool = False


@dataclass(slots=True)
class EngineEntry:
    """The open engine of a replica, what this gateway has running on it (`Flight`), and its health as last seen.

    `unfit` says what is wrong with the deployment itself, such as a missing price, however well its engine is.
    `uncached` counts the prompt tokens of its requests that are not computed yet.
    """

    deployment: DeploymentEntry
    replica: ReplicaEntry
    spec: EngineSpec
    engine: Engine
    unfit: str = ""
    requests: int = 0
    uncached: int = 0
    health: Health = field(default_factory=lambda: Health(ready=False, reason="not heard from yet"))
    breaker: Breaker = field(default_factory=Breaker)
    prefixes: PrefixIndex = field(default_factory=lambda: PrefixIndex(PREFIX_CHUNKS))
    _ttfts: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)  # by adapter, the last one asked last

    @property
    def obstacle(self) -> str:
        """Why it can't take work now; empty when it can."""
        return self.unfit or ("" if self.health.ready else self.health.reason or "not ready") or self.breaker.obstacle

    @property
    def remark(self) -> str:
        """A warning for operators about a replica that takes work; empty without one, or when it takes none."""
        return "" if self.obstacle else self.breaker.remark

    @property
    def load(self) -> int:
        """The tokens that it has to compute for this gateway and, by its own count of requests, for others."""
        others = max(0, self.health.running + self.health.waiting - self.requests)
        return self.uncached + RUNNING_TOKENS * (self.requests + others)

    def adapter(self, name: str) -> AdapterPlace:
        """Return how that adapter is here."""
        info, node = self.engine.info, self.replica.place
        if self.obstacle or info is None:
            return AdapterPlace(node, "not ready", self.obstacle)
        refusal = info.adapters.get(name)
        if refusal is None:
            return AdapterPlace(node, "loading")
        if refusal:
            return AdapterPlace(node, "refused", refusal)
        return AdapterPlace(node, "ready", in_memory=name in self.health.adapters)

    def took(self, ttft_ms: int, adapter: str = "") -> None:
        """Note the time to first token of a request with that adapter, or the base alone, that it began just now."""
        times = self._ttfts.pop(adapter, None)
        self._ttfts[adapter] = times = deque(maxlen=TTFT_REQUESTS) if times is None else times
        times.append((time.monotonic(), ttft_ms))
        if len(self._ttfts) > TTFT_ADAPTERS:
            del self._ttfts[next(iter(self._ttfts))]

    def ttfts(self, adapter: str = "") -> list[int]:
        """Return the times to first token of its latest requests with that adapter, in ms."""
        since = time.monotonic() - TTFT_SECONDS
        return [ttft_ms for at, ttft_ms in self._ttfts.get(adapter, ()) if at >= since]


ADAPTERS_OWN = frozenset({"adapter_refused", "adapters_in_use", "adapter_not_ready", "unknown_adapter"})
"""Codes of failures that say nothing of the replica's base, nor of its other adapters."""

_NO_ROOM = frozenset({OverloadedError.code, "queue_timeout", "out_of_memory", "unschedulable"})
_ITS_OWN = frozenset({"text_failed", "non_finite_logits", "non_finite_vector"})  # wrong in this request's row alone


class Flight:
    """One request on one replica: its load there, and its evidence of the replica's health, until its end.

    Load is counted here and nowhere else, so that it returns to zero on every path. `prompt_tokens` may be an estimate;
    `matched` of them count as cached until the engine says.
    """

    def __init__(
        self,
        entry: EngineEntry,
        prompt_tokens: int,
        tenant: UUID,
        *,
        adapter: str = "",
        matched: int = 0,
        prefix: tuple[Digest, ...] = (),
    ) -> None:
        self.engine = entry.engine
        self._adapter = adapter
        self._entry = entry
        self._is_open = True
        self._sent_at: float | None = None
        self._ticket = entry.breaker.enter(tenant)
        self._uncached = max(0, prompt_tokens - matched)
        self._matched = matched
        self._known = entry.prefixes.add(prefix) if prefix else ()
        entry.requests += 1
        entry.uncached += self._uncached

    def sent(self) -> None:
        """Note that the engine gets the request now."""
        self._sent_at = time.monotonic()

    def answered(self) -> None:
        """Note that its first token has come; a second call does nothing."""
        if self._sent_at is not None:
            self._entry.took(round((time.monotonic() - self._sent_at) * 1000), self._adapter)
            self._sent_at = None

    def started(self, cached_tokens: int, *, was_stopped: bool = False) -> None:
        """Note that the prompt has been computed, `cached_tokens` of it taken from the cache.

        Where the engine `was_stopped` before, it may only have been sent: that says nothing of the engine.
        """
        self._drop()
        if was_stopped:
            return
        self._entry.breaker.began(self._ticket)
        if cached_tokens + CHUNK_TOKENS <= self._matched:
            # The first of the chunks that it was taken to have and hadn't: what is older is gone too.
            missing = cached_tokens // CHUNK_TOKENS
            if missing < len(self._known):
                self._entry.prefixes.forget(self._known[missing])

    def ended(self, end: EngineError | Finished) -> None:
        """Note what its end says of the engine: that it failed or answered well, or nothing."""
        if has_failed(end):
            self._entry.breaker.failed(self._ticket)
        elif isinstance(end, Finished) and end.error is None and end.reason is not FinishReason.CANCELLED:
            self._entry.breaker.succeeded(self._ticket)

    def close(self) -> None:
        """Take the request off the load; a second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._drop()
        self._entry.requests -= 1
        self._entry.breaker.leave(self._ticket)

    def _drop(self) -> None:
        self._entry.uncached -= self._uncached
        self._uncached = 0


def has_failed(end: EngineError | Finished) -> bool:
    """Whether the engine failed, rather than declined what it can't take now or never, or was wrong in one row."""
    if isinstance(end, EngineError):
        declined = (OverloadedError, DrainingError, InvalidRequestError, UnpreparedError)
        return not isinstance(end, declined)
    fault = end.error
    return fault is not None and fault.param is None and fault.code not in ADAPTERS_OWN | _NO_ROOM | _ITS_OWN


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
