"""The one seam between gateway and engines (DESIGN §4): the protocol and its specification.

Contract of every implementation:

- `generate` yields `Started`, then `Delta`… or `Vector`…, then exactly one `Finished`, always last, always with usage,
  on every path. Closing the iterator cancels the request. `UnpreparedError`, `OverloadedError` and
  `InvalidRequestError` may be raised instead of the first event; then nothing ran. `UnpreparedError` with its own code
  ``unprepared`` means that the prompt was forgotten: its caller, who knows what was held for it, may prepare it once
  more. With the code ``request_closed`` the id has run, ended or been declared as never run, and stays refused.
- At its `allowance` (output tokens permitted in all) a request pauses for at most 2 s and goes on when `extend` raises
  it; when `is_final` is set it ends there at once with reason ``allowance``. Reaching max_tokens is ``length``.
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

    Deployments served by one worker share its endpoint and one session. `options` are the backend's own (for ``fake``:
    see `inference.clients.fake`).
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

    def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]: ...

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None: ...

    async def cancel(self, request_id: str) -> None: ...

    async def usage_of(self, request_id: str) -> Evidence: ...

    async def health(self) -> Health: ...

    async def drain(self, seconds: float) -> None: ...

    async def close(self) -> None: ...
