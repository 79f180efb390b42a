"""Long prompts are tokenised, grammars compiled and adapters read in threads of their own, a few for each.

Encoding takes up to a second per megabyte. In the reader thread that would keep every gateway's renewals unanswered,
and five seconds of silence end a session; tokenizers work outside the interpreter's lock, so other threads do it.
Compiling a grammar that nobody has used before takes long as well, and so does reading an adapter: such a request is
prepared when that is done.

A queue is bounded in bytes. A tenant may hold at most as many bytes as are still free, so tenants that hold much always
leave some for another. A tenant has one thread of a kind at a time, and the next free one goes to the tenant whose work
took the least time for its weight; what all of its work together may take is in its budget.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from inference.core.fairness import FairQueue
from inference.core.grammar import Grammar
from inference.errors import EngineError, OverloadedError
from inference.logs import request_field
from inference.protocol import Detokenize, Prepare, Tokenize
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, Guidance, Tokens
from inference.worker.budget import PreparationBudget
from inference.worker.deployment import Deployment

SHORT_BYTES = 4096  # the reader thread prepares frames up to this size: a few milliseconds at most
MAX_QUEUED_BYTES = 64 * 1024 * 1024
MAX_WAIT_SECONDS = 10.0  # a gateway gives up on its call then
PROMPT_THREADS = 2
WAITED = 2.0  # seconds that work is charged at most whose clock runs while it waits for a process or a disk
GRAMMAR_THREADS = 4  # each waits for a process most of the time
ADAPTER_THREADS = 1  # of a disk

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PromptCall:
    """A request to be prepared. It counts as `size` bytes; `since` is when it came, on the queue's clock.

    `grammar` is that of its guidance, once it was compiled, `adapter` the key of its adapter, once that was loaded.
    """

    session: bytes
    message: Prepare | Tokenize | Detokenize
    deployment: Deployment
    size: int
    since: float
    grammar: Grammar | None = None
    adapter: str | None = None

    @property
    def tenant(self) -> str:
        return self.message.request.tenant

    @property
    def payer(self) -> str:
        """The tenant whose budget it takes from, however it queues."""
        return self.message.request.domain

    @property
    def weight(self) -> int:
        return max(1, self.message.request.weight)

    @property
    def band(self) -> int:
        return self.message.request.band

    @property
    def priority(self) -> int:
        return self.message.request.priority


class Text(NamedTuple):
    """The text of tokens."""

    text: str


class LoadedAdapter(NamedTuple):
    """The key of an adapter in memory."""

    key: str


Outcome = Prompt | Tokens | Text | Grammar | LoadedAdapter
"""A request's prompt, its tokens, the text of its tokens, or the grammar or adapter with which it is to be prepared."""


@dataclass(frozen=True, slots=True)
class PromptResult:
    """Outcome of a call, or the error that refuses it."""

    call: PromptCall
    outcome: Outcome | EngineError


class PromptQueue:
    """Threads and their queue. `work` and then `done` with its result are called in one of them for each call.

    `what` is prepared in them, at the cost of its tenant's `budget`. `timer` measures that: where work waits for a
    process or a disk it is a clock, and `most` bounds what the wait costs.
    """

    def __init__(
        self,
        work: Callable[[PromptCall], Outcome],
        done: Callable[[PromptResult], None],
        budget: PreparationBudget,
        clock: Callable[[], float] = time.monotonic,
        *,
        what: str,
        threads: int,
        timer: Callable[[], float] = time.monotonic,
        most: float = math.inf,
    ) -> None:
        self._work = work
        self._refusal = f"too many {what} are being prepared"
        self._done = done
        self._budget = budget
        self._timer, self._most = timer, most
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: FairQueue[PromptCall] = FairQueue()
        self._bytes: Counter[str] = Counter()  # by tenant, what is being worked on included
        self._busy: set[str] = set()  # the payers whose work has a thread
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name=what, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, call: PromptCall) -> None:
        """Prepare `call` when its tenant's turn comes; raise `OverloadedError` when its tenant has too much queued, or
        has used up its budget.
        """
        self._budget.require(call.payer)
        with self._changed:
            if self._bytes[call.tenant] + call.size > MAX_QUEUED_BYTES - self._bytes.total():
                raise OverloadedError(self._refusal)
            self._bytes[call.tenant] += call.size
            self._queue.push(call)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """End the threads after what they work on; wait for that at most `seconds`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (call := self._next()) is not None:
            began = self._clock()
            try:
                outcome: Outcome | EngineError
                is_late = began - call.since > MAX_WAIT_SECONDS
                outcome = OverloadedError(self._refusal) if is_late else self._worked(call)
            except EngineError as error:
                outcome = error
            with self._changed:
                self._queue.charge(call.tenant, prompt=round((self._clock() - began) * 1_000_000))
                self._bytes[call.tenant] -= call.size
                self._bytes += Counter()  # drops tenants with 0 bytes
                self._queue.prune(self._bytes)
                self._busy.discard(call.payer)
                self._changed.notify()  # another of its tenant's may begin
            self._done(PromptResult(call, outcome))

    def _worked(self, call: PromptCall) -> Outcome:
        with self._budget.spent(call.payer, self._timer, self._most):
            return self._work(call)

    def _next(self) -> PromptCall | None:
        with self._changed:
            while not self._closed:
                free = (call for call in self._queue.heads() if call.payer not in self._busy)
                if (call := next(free, None)) is not None:
                    self._queue.remove(call)
                    self._busy.add(call.payer)
                    return call
                self._changed.wait()
        return None


class Queues(NamedTuple):
    """Queues of work that takes too long for the reader thread."""

    prompts: PromptQueue
    grammars: PromptQueue
    adapters: PromptQueue

    @classmethod
    def opened(cls, done: Callable[[PromptResult], None], budget: PreparationBudget) -> Queues:
        """Start their threads."""
        return cls(
            PromptQueue(long_prompt, done, budget, what="long prompts", threads=PROMPT_THREADS, timer=time.thread_time),
            PromptQueue(grammar_of, done, budget, what="new grammars", threads=GRAMMAR_THREADS, most=WAITED),
            PromptQueue(adapter_of, done, budget, what="adapters", threads=ADAPTER_THREADS, most=WAITED),
        )

    def close(self) -> None:
        """End their threads, whatever they work on; wait a moment for those that are about to end."""
        self.prompts.close(seconds=2)
        self.grammars.close(seconds=0.5)
        self.adapters.close(seconds=0.5)


def long_prompt(call: PromptCall) -> Outcome:
    """Return what the call asks for, as the threads of long prompts make it."""
    return outcome_of(call, own_tokenizer=False)


def guidance_of(call: PromptCall) -> Guidance | None:
    """Return what the request's answer is held to; raise `EngineError` for every failure."""
    with _refusing(call.deployment, call.message.request):
        return call.deployment.guidance_of(call.message.request)


def grammar_of(call: PromptCall) -> Grammar:
    """Return the compiled grammar of the request's guidance; raise `EngineError` for every failure."""
    guidance, grammars = guidance_of(call), call.deployment.grammars
    assert guidance is not None
    assert grammars is not None
    with _refusing(call.deployment, call.message.request):
        return grammars.compiled(guidance)


def adapter_of(call: PromptCall) -> LoadedAdapter:
    """Return the request's adapter, read unless it is in memory; raise `EngineError` for every failure."""
    with _refusing(call.deployment, call.message.request):
        return LoadedAdapter(call.deployment.load_adapter(call.message.request))


def outcome_of(call: PromptCall, *, own_tokenizer: bool = True) -> Outcome:
    """Return what the call asks for: its request in tokens, or the text of its tokens; raise `EngineError` for every
    failure. The engine's `own_tokenizer` is the reader thread's.
    """
    deployment, message = call.deployment, call.message
    with _refusing(deployment, message.request):
        match message:
            case Prepare():
                return deployment.prepare(
                    message.request,
                    own_tokenizer=own_tokenizer,
                    grammar=call.grammar,
                    adapter=call.adapter or "",
                )
            case Tokenize():
                return deployment.tokenize(
                    message.request,
                    special=message.special,
                    with_texts=message.with_texts,
                    own_tokenizer=own_tokenizer,
                )
            case Detokenize():
                return Text(deployment.detokenize(message.request, own_tokenizer=own_tokenizer))


@contextmanager
def _refusing(deployment: Deployment, request: GenerationRequest) -> Iterator[None]:
    """Raise whatever fails as an `EngineError`.

    A tokenizer, template or grammar that fails on one text must not end the thread that serves all.
    """
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library in Rust that panics raises no Exception
        about = request_field(request.id) | {"tenant": request.tenant, "deployment": deployment.id}
        log.exception("preparing a request failed", extra=about)
        message = f"the request can't be prepared ({type(error).__name__})"
        raise EngineError(message, code="prepare_failed") from error
