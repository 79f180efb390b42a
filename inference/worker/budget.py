"""Seconds that each tenant may use of the threads and processes in which requests are prepared."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.errors import LimitedError

PER_SECOND = 0.25  # a quarter of a processor: English text of more than 100,000 tokens a second
AT_ONCE = 10.0  # seconds that may be used in a row: five grammars that are too complex, ten prompts of a megabyte
_MOST_KEPT = 10_000


class PreparationBudget:
    """A token bucket of seconds for each tenant. What was prepared in vain is used up, too.

    Time counts when it has been used, so one piece of work may take a bucket below zero. For any thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        per_second: float = PER_SECOND,
        at_once: float = AT_ONCE,
    ) -> None:
        self._clock = clock
        self._per_second = per_second
        self._at_once = at_once
        self._full_at: dict[str, float] = {}  # when the tenant's bucket is full again
        self._lock = threading.Lock()

    def require(self, tenant: str) -> None:
        """Raise `LimitedError` while the tenant's seconds are used up."""
        with self._lock:
            left = self._at_once - (self._full_at.get(tenant, 0.0) - self._clock()) * self._per_second
        if left <= 0:
            seconds = math.ceil(max(-left / self._per_second, 1.0))
            raise LimitedError(
                "Preparing your requests (tokens, schemas and grammars, adapters) took all of the processor's time "
                f"that one tenant may have for it: try again in {seconds} s, or send less text and fewer new schemas.",
                seconds=seconds,
            )

    def use(self, tenant: str, seconds: float) -> None:
        """Take `seconds` from the tenant's bucket."""
        with self._lock:
            now = self._clock()
            self._full_at[tenant] = max(self._full_at.get(tenant, 0.0), now) + seconds / self._per_second
            if len(self._full_at) > _MOST_KEPT:
                self._full_at = {name: at for name, at in self._full_at.items() if at > now}

    @contextmanager
    def spent(
        self, tenant: str, timer: Callable[[], float] = time.thread_time, most: float = math.inf
    ) -> Iterator[None]:
        """Take the seconds of the block, by default those that this thread computes, `most` at most; raise
        `LimitedError` and begin nothing where the tenant's are used up.
        """
        self.require(tenant)
        began = timer()
        try:
            yield
        finally:
            self.use(tenant, min(timer() - began, most))
