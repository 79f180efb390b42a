"""The open engine of one replica: what runs on it, how it is, and what it probably has in its prefix cache."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from gateway.runtime.breaker import Breaker
from inference.engine import Engine, EngineSpec
from inference.types import Health
from routing.catalogue import DeploymentEntry, ReplicaEntry
from routing.prefix import CHUNK_BYTES, PrefixIndex

RUNNING_TOKENS = 64  # what a request costs others while it generates, as much as so many tokens of a prompt
CHUNK_TOKENS = CHUNK_BYTES // 4
PREFIX_CHUNKS = 16_384  # about a million tokens
TTFT_REQUESTS = 128  # the latest whose time to first token is known
TTFT_ADAPTERS = 256  # of so many of a replica's adapters, those that were asked last, these times are known
TTFT_SECONDS = 300.0  # older ones say nothing: who was too slow gets no requests by which to show that it is not


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """How an adapter is at one replica of its base: "ready", "refused", "loading" or "not ready", with the reason.

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
        """How many tokens it has to compute for this gateway and, by its own count of requests, for others."""
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
