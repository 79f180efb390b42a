"""One request on one replica: what it adds to the replica's load, and what it says of the replica, until its end.

Load is counted here and nowhere else, so that it returns to zero on every path.
"""

from __future__ import annotations

import time

from gateway.runtime.engine_entry import CHUNK_TOKENS, EngineEntry
from routing.prefix import Digest


class Flight:
    """One request's load on a replica. `prompt_tokens` may be an estimate; `matched` of them count as cached until the
    engine says.
    """

    def __init__(
        self,
        entry: EngineEntry,
        prompt_tokens: int,
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
        self._ticket = entry.breaker.enter()
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

    def succeeded(self) -> None:
        """Note that the engine answered it to its end."""
        self._entry.breaker.succeeded(self._ticket)

    def failed(self) -> None:
        """Note that the engine failed on it."""
        self._entry.breaker.failed(self._ticket)

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
