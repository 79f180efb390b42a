"""The seam between gateway and engines: how a deployment's engine is specified, and what each engine does.

Contract of every implementation:

- `generate` yields `Started`, then `Delta`… or `Vector`…, then exactly one `Finished`, always last, always with usage,
  on every path. Closing the iterator cancels the request. `UnpreparedError`, `OverloadedError` and
  `InvalidRequestError` may be raised instead of the first event; then nothing ran, unless its `may_have_run` says so.
  `UnpreparedError` with its own code ``unprepared`` means that the prompt is no longer kept: the gateway, which knows
  the hold, may prepare it once more. With the code ``request_closed`` the id has run, ended or been recorded as never
  run, and stays refused. Any other `EngineError` in that place is a failure of the engine, after which
  `UnreachableError` leaves open what ran.
- A request that has generated its `allowance` (output tokens permitted in all) pauses until `extend` raises it, for 2 s
  at most; after that, or at once when `is_final` is set, it ends with reason ``allowance``. At max_tokens it ends with
  ``length``.
- A request with `resumed` goes on behind those tokens as the engine that generated them would have; its allowance, its
  max_tokens and the usage that it reports include them. One without room for another token is refused as invalid.
- `extend` is absolute, so a repeat is harmless. `cancel` is idempotent; a request that is only prepared is forgotten.
- `usage_of` answers for 24 hours, from the worker's append-only record. Asking for an unknown id closes it: the answer
  is `NothingRan`, and the id stays refused.
- A call that the engine doesn't answer raises `UnreachableError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference.types import EngineInfo, Event, Evidence, GenerationRequest, Health, Prepared, Tokens


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to reach one deployment's engine.

    `backend` is ``worker`` (ZeroMQ at `endpoint`), ``openai`` (a foreign server at the address `endpoint`, with
    `credential` as its API key), or ``fake`` (in process).

    Deployments served by one worker share its endpoint and one session. Over tcp `server_key` is the worker's public
    key and `secret_key` the gateway's own (`inference.curve`). `options` are the backend's own
    (`inference.clients.worker.open_worker_engine`, `inference.clients.remote.options.RemoteOptions`,
    `inference.clients.fake_run.FakeOptions`).
    """

    deployment: str
    backend: str
    endpoint: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    credential: str = field(default="", repr=False)
    server_key: str = ""
    secret_key: str = field(default="", repr=False)


class Engine(Protocol):
    """One deployment's engine, under this module's contract."""

    @property
    def info(self) -> EngineInfo | None:
        """The worker's announcement, or None before its first Ready."""
        ...

    async def prepare(self, request: GenerationRequest) -> Prepared:
        """Tokenise the request and keep its ids for 30 s; raise `InvalidRequestError`, `OverloadedError` or, after 10 s
        without an answer, `UnreachableError`.
        """
        ...

    async def tokenize(self, request: GenerationRequest, *, special: bool = True, with_texts: bool = False) -> Tokens:
        """Return the tokens of the request's prompt, and nothing of it is kept. With `special` a raw prompt has the
        tokens that the model's texts begin with. Raise what `prepare` does.
        """
        ...

    async def detokenize(self, request: GenerationRequest) -> str:
        """Return the text of the token ids in the request's prompt, control tokens included. Raise what `prepare`
        does.
        """
        ...

    def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]:
        """Run a prepared request and yield its events."""
        ...

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all; `is_final` says that it won't be raised again."""
        ...

    async def cancel(self, request_id: str) -> None:
        """End a running request, whose `Finished` still comes, or forget one that is only prepared."""
        ...

    async def usage_of(self, request_id: str) -> Evidence:
        """Return what is known of a request, running or not."""
        ...

    async def health(self) -> Health:
        """Return the last known state, without waiting for the engine."""
        ...

    async def drain(self, seconds: float) -> None:
        """Take no new requests, cancel what still runs after `seconds`, and return when nothing runs."""
        ...

    async def close(self) -> None:
        """Release the engine; requests that still run are cancelled or end as lost."""
        ...
