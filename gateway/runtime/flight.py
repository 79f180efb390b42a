"""One request on one replica: what it adds to the replica's load, and what it says of the replica, until its end.

Load is counted here and nowhere else, so that it returns to zero on every path.
"""

from __future__ import annotations

import time
from uuid import UUID

from gateway.runtime.engine_entry import CHUNK_TOKENS, EngineEntry
from inference.errors import DrainingError, EngineError, InvalidRequestError, OverloadedError, UnpreparedError
from inference.types import Finished, FinishReason
from routing.prefix import Digest

ADAPTERS_OWN = frozenset({"adapter_refused", "adapters_in_use", "adapter_not_ready", "unknown_adapter"})
"""Codes of failures that say nothing of the replica's base, nor of its other adapters."""

_NO_ROOM = frozenset({OverloadedError.code, "queue_timeout", "out_of_memory", "unschedulable"})
_ITS_OWN = frozenset({"text_failed", "non_finite_logits", "non_finite_vector"})  # wrong in this request's row alone


class Flight:
    """One request's load on a replica. `prompt_tokens` may be an estimate; `matched` of them count as cached until the
    engine says.
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
