"""Preparing long requests in a thread of their own.

Encoding takes seconds per megabyte. In the reader thread that would keep every gateway's renewals unanswered, and five
seconds of silence end all that runs here; tokenizers work outside the interpreter's lock, so another thread does it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from inference.errors import EngineError, OverloadedError
from inference.protocol import Prepare
from inference.types import GenerationRequest
from inference.worker.deployment import Prompt, ServedEngine

LONG_BYTES = 4096  # of a Prepare's frame: what encodes in a few milliseconds at most
MOST_WAITING = 16
MOST_PER_TENANT = 4
WAITING_SECONDS = 10.0  # a gateway waits no longer for its answer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LongRequest:
    """A request to be prepared: for whom, by which engine, and the bytes that it counts as."""

    session: bytes
    message: Prepare
    engine: ServedEngine
    size: int
    since: float


@dataclass(frozen=True, slots=True)
class LongPrepared:
    """What became of a long request: its prompt, or why there is none."""

    asked: LongRequest
    outcome: Prompt | EngineError


class LongRequests:
    """The thread and its bounded queue. `done` is called in that thread with what became of each request."""

    def __init__(self, done: Callable[[LongPrepared], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._done = done
        self._clock = clock
        self._queue: SimpleQueue[LongRequest | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._waiting: Counter[str] = Counter()  # by tenant
        self._thread: threading.Thread | None = None

    def put(self, asked: LongRequest) -> None:
        """Prepare `asked` after those that wait; raise `OverloadedError` where too many do."""
        tenant = asked.message.request.tenant
        with self._mutex:
            if self._waiting.total() >= MOST_WAITING or self._waiting[tenant] >= MOST_PER_TENANT:
                raise OverloadedError("too many long requests are being prepared")
            self._waiting[tenant] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="long-requests", daemon=True)
                self._thread.start()
        self._queue.put(asked)

    def close(self, seconds: float) -> None:
        """End the thread after what it is doing, but wait for at most so long."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (asked := self._queue.get()) is not None:
            try:
                outcome: Prompt | EngineError
                if self._clock() - asked.since > WAITING_SECONDS:
                    outcome = OverloadedError("too many long requests are being prepared")
                else:
                    outcome = prompt_of(asked.engine, asked.message.request, apart=True)
            except EngineError as error:
                outcome = error
            with self._mutex:
                self._waiting[asked.message.request.tenant] -= 1
                self._waiting += Counter()  # forgets tenants without any
            self._done(LongPrepared(asked, outcome))


def prompt_of(engine: ServedEngine, request: GenerationRequest, *, apart: bool = False) -> Prompt:
    """Return the request in tokens; raise `EngineError` for whatever is in the way.

    A tokenizer or template that fails on one text must not end the thread that serves all.
    """
    try:
        return engine.prepare(request, apart=apart)
    except EngineError:
        raise
    except Exception as error:
        log.exception("preparing a request for %s failed", engine.deployment)
        message = f"the request can't be prepared ({type(error).__name__})"
        raise EngineError(message, code="prepare_failed") from error
