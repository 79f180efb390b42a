"""The one seam between gateway and engines (DESIGN §4): the protocol, its specification, and `open_engine`.

Contract of every implementation:

- `generate` yields `Started`, then `Delta`… or `Vector`…, then exactly one `Finished`, always last, always with usage,
  on every path. Closing the iterator cancels the request. `UnpreparedError`, `OverloadedError` and
  `InvalidRequestError` may be raised instead of the first event; then nothing ran.
- At its `allowance` (output tokens permitted in all) a request pauses for at most 2 s and goes on when `extend` raises
  it; when `last` is set it ends there at once with reason ``allowance``. Reaching max_tokens is ``length``.
- `extend` is absolute, so a repeat is harmless. `cancel` is idempotent.
- `usage_of` answers from the worker's append-only record, for 24 hours; without an answer: `UnreachableError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.types import EngineInfo, Event, Evidence, GenerationRequest, Health, Prepared


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to reach one deployment's engine: `backend` is ``worker`` (ZeroMQ at `endpoint`) or ``fake`` (in process).

    Deployments served by one worker share its endpoint; `open_engine` shares the session. `options` are the backend's
    own (for ``fake``: see `inference.clients.fake`).
    """

    deployment: str
    backend: str
    endpoint: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


class Engine(Protocol):
    """One deployment, as the gateway knows it."""

    @property
    def info(self) -> EngineInfo | None:
        """What the worker announced, or None before its first Ready."""
        ...

    async def prepare(self, request: GenerationRequest) -> Prepared: ...

    def generate(self, prepared: Prepared, allowance: int, last: bool) -> AsyncIterator[Event]: ...

    async def extend(self, request_id: str, allowance: int, last: bool) -> None: ...

    async def cancel(self, request_id: str) -> None: ...

    async def usage_of(self, request_id: str) -> Evidence: ...

    async def health(self) -> Health: ...

    async def drain(self, deadline: float) -> None: ...

    async def close(self) -> None: ...


def open_engine(spec: EngineSpec) -> Engine:
    """Return the engine that `spec` names, connecting in the background on the running event loop.

    The implementation is imported here and only here, so that a web process never loads more than it uses.
    """
    match spec.backend:
        case "worker":
            from inference.clients.worker import open_worker_engine

            return open_worker_engine(spec)
        case "fake":
            from inference.clients.fake import FakeEngine

            return FakeEngine(spec)
        case other:
            raise ValueError(f"EngineSpec.backend: {other!r} is not one of 'worker', 'fake'")
