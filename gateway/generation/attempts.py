"""One request on its engines, one after another, seen as one stream of events.

    replica 1:  Started  Delta…  ✗ (its worker dies)
    replica 2:                     prepared with the tokens so far, the same seed:  Delta…  Finished
    the reader: Started  Delta…                                                     Delta…  Finished

As long as nothing of an answer was delivered, whatever an engine fails with lets the next one begin anew: another
replica, or where none takes it another deployment of the model, or a model that the rules fall back to, once the hold
is pinned to its price. Log-probabilities of the prompt are held back until then. Once tokens were delivered, only the
loss of the engine does, and a replica of the same deployment goes on behind them: noise is a function of (seed,
position, token), so it continues the text that the first would have given. Each attempt has an id of its own, so that
no engine refuses it and the sweep can ask for each; the usage that a resumed attempt reports is the whole request's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from hashlib import blake2b
from typing import Any, cast
from uuid import UUID

import structlog

from gateway.errors.refusal import Refusal
from gateway.generation.placement import Placement, Reach
from gateway.runtime import tracing
from gateway.runtime.engines import ADAPTERS_OWN, Flight
from inference.errors import EngineError, InvalidRequestError, LimitedError, UnpreparedError, UnreachableError
from inference.types import (
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Kind,
    Prepared,
    Resumed,
    Started,
    Usage,
    Vector,
)

PAUSE_SECONDS = 2.0  # a request that has used its allowance waits so long for more

log = structlog.get_logger(__name__)


def attempt_id(request: UUID, number: int) -> str:
    """Return the id under which engines know a request's attempt: the request's own, then uuid7s made from it."""
    if not number:
        return request.hex
    digest = blake2b(request.bytes + number.to_bytes(1), digest_size=10).digest()
    made = (int.from_bytes(request.bytes[:6]) << 80) | int.from_bytes(digest)
    made = (made & ~(0xF << 76)) | (7 << 76)
    return UUID(int=(made & ~(0x3 << 62)) | (0x2 << 62)).hex


class Attempts:
    """A request's attempts as one stream. `allowed` returns what the request may generate now; `reach` how far it may
    move before its first token; `pinned` pins its hold to the deployment that its placement has now, for the request as
    prepared there, and returns what of it the credit allows, or raises a Refusal; `restart` is called when an engine
    ended that delivered nothing, since the next one may have none of the prompt cached; `supervise` runs work to its
    end.

    `may_have_run` is True when an attempt ended of which nobody knows what it computed, or that computed in vain.
    """

    def __init__(
        self,
        request: UUID,
        prepared: Prepared,
        placement: Placement,
        *,
        allowed: Callable[[], tuple[int, bool]],
        is_cancelled: Callable[[], bool],
        reach: Callable[[], Reach],
        pinned: Callable[[Prepared], Awaitable[Prepared]],
        restart: Callable[[], None],
        supervise: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.placement = placement
        self.may_have_run = False
        self._request = request
        self._prepared = prepared
        self._allowed = allowed
        self._is_cancelled = is_cancelled
        self._reach = reach
        self._pin = pinned
        self._restart = restart
        self._pinned_to = self._place
        self._supervise = supervise
        self._number = 0
        self._tokens: list[int] = []
        self._usage = Usage()
        self._seed: int | None = None
        self._delivered = False
        self._held: list[Delta] = []  # what this attempt told of the prompt alone, which is told with what comes next
        self._was_forgotten = False
        self._more_allowed = asyncio.Event()

    async def run(self, note: Callable[[Event], None]) -> Finished:
        """Call `note` with every event but the last, which is returned; raise `EngineError` where no engine has one."""
        while True:
            end = await self._run_once(note)
            if isinstance(end, Finished) and not self._may_go_on(end):
                self._tell_held(note)
                return self._whole(end)
            if not self._delivered:
                self._restart()
            if isinstance(end, UnpreparedError):
                failure = await self._prepare_again(end)
                if failure is None:
                    continue
                end = failure
            if not self._may_go_on(end) or not await self._moved(end):
                if isinstance(end, EngineError):
                    raise end
                return self._whole(end)

    async def extend(self, allowance: int, is_final: bool) -> None:
        """Tell the engine what it may generate in all."""
        self._more_allowed.set()
        if (flight := self.placement.flight) is not None:
            await flight.engine.extend(self._id, allowance, is_final)

    async def cancel(self) -> None:
        """Tell the engine to stop."""
        self._more_allowed.set()
        if (flight := self.placement.flight) is not None:
            await flight.engine.cancel(self._id)

    # -- one attempt ----------------------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return attempt_id(self._request, self._number)

    async def _run_once(self, note: Callable[[Event], None]) -> EngineError | Finished:
        """Run the request on the replica that prepared it, and return how that ended."""
        flight = self.placement.flight
        assert flight is not None, "an attempt runs on a replica"
        self._held = []
        if (ended := await self._end_before()) is not None:
            return ended
        flight.sent()
        end = await self._run_on(flight, note)
        if not self._is_cancelled():
            flight.ended(end)
        return end

    async def _run_on(self, flight: Flight, note: Callable[[Event], None]) -> EngineError | Finished:
        """Tell what the replica of `flight` generates, and return how that ended."""
        stream = flight.engine.generate(self._prepared, *self._allowed())
        try:
            async with aclosing(cast("AsyncGenerator[Event, None]", stream)) as events:
                async for event in events:
                    match event:
                        case Delta():
                            if not self._delivered and self._holds(event, note):
                                continue
                            self._delivered = True
                            flight.answered()
                            self._tokens += event.tokens
                            self._usage = event.usage
                        case Finished():
                            return event
                        case Started():
                            flight.started(event.cached_tokens, was_stopped=self._is_cancelled())
                            self._seed = event.seed
                            if self._tokens:
                                continue  # what is computed again for us is neither told nor charged
                        case Vector():
                            self._delivered = True
                    note(event)
        except EngineError as error:
            return error
        raise RuntimeError("the engine's stream ended without Finished")

    async def _end_before(self) -> Finished | None:
        """Return the end of a request that may generate nothing more or was cancelled, before it is sent."""
        if self._tokens and not await self._is_allowed_more():
            return Finished(FinishReason.ALLOWANCE, self._usage)
        if self._is_cancelled():
            return Finished(FinishReason.CANCELLED, self._usage)
        return None

    def _holds(self, delta: Delta, note: Callable[[Event], None]) -> bool:
        """Hold `delta` back and return True if it tells of the prompt alone; else tell what was held back."""
        if _is_of_prompt(delta):
            self._held.append(delta)
            return True
        self._tell_held(note)
        return False

    def _tell_held(self, note: Callable[[Event], None]) -> None:
        for delta in self._held:
            note(delta)
        self._held = []

    async def _prepare_again(self, forgotten: UnpreparedError) -> EngineError | None:
        """Have the same engine prepare the request once more, if it only forgot it: it keeps one for a while.

        Return None when it did, else why not.
        """
        if forgotten.code != UnpreparedError.code or self._delivered:
            return forgotten
        if self._was_forgotten:
            return EngineError(forgotten.message)
        self._was_forgotten = True
        try:
            await self._prepare(self._prepared.request)
        except EngineError as error:
            return error
        return None

    async def _prepare(self, request: GenerationRequest) -> None:
        """Have the current engine prepare `request`; raise what it raises, and where the prompt has become longer.

        On another deployment than before the hold is pinned to its price; raise the Refusal for why it can't be.
        """
        flight = self.placement.flight
        assert flight is not None, "an attempt is prepared on a replica"
        again = await flight.engine.prepare(self.placement.adapted(request))
        if self._place != self._pinned_to:
            self._prepared = await self._pin(again)
            self._pinned_to = self._place
            return
        if again.prompt_tokens > self._prepared.prompt_tokens:
            raise EngineError("The prompt takes more tokens than its hold pays for.")
        self._prepared = replace(again, max_output=min(again.max_output, self._prepared.max_output))

    @property
    def _place(self) -> tuple[UUID, str]:
        """The place and model that its hold's price is pinned to."""
        return self.placement.route.deployment, self.placement.route.model

    # -- between two ----------------------------------------------------------------------------------------------

    def _may_go_on(self, end: EngineError | Finished) -> bool:
        """Whether another engine may take the request over after that end of an attempt."""
        if self._is_cancelled():
            return False
        if isinstance(end, InvalidRequestError | LimitedError):
            return False
        if isinstance(end, UnpreparedError) and end.code != UnpreparedError.code:
            return False
        if isinstance(end, Finished) and end.error is not None and end.error.param is not None:
            return False  # every engine ends it so
        is_lost = isinstance(end, UnreachableError) or (isinstance(end, Finished) and not end.exact)
        is_stopped = isinstance(end, Finished) and end.error is None and end.reason is FinishReason.CANCELLED
        if not self._delivered:
            return isinstance(end, EngineError) or is_stopped or end.error is not None
        return (is_lost or is_stopped) and self._is_resumable

    @property
    def _is_resumable(self) -> bool:
        """Whether all tokens so far and the seed are known."""
        is_chat = self._prepared.request.kind is Kind.CHAT
        return is_chat and self._seed is not None and len(self._tokens) == self._usage.completion > 0

    async def _moved(self, failure: EngineError | Finished) -> bool:
        """Have another replica prepare the request with the tokens so far; False when none can."""
        self._fail(failure)
        reach = Reach.DEPLOYMENT if self._delivered else self._reach()
        while self.placement.another(reach):
            self._number += 1
            self._was_forgotten = False
            try:
                await self._prepare(replace(self._prepared.request, id=self._id, resumed=self._resumed()))
            except EngineError as error:
                if self.placement.flight is not None:
                    self.placement.flight.ended(error)
                self._fail(error)
                continue
            except Refusal as refusal:
                self.placement.note_failure(refusal.message)
                if refusal.status == 503:  # the hold is not ours, or nobody knows what it is pinned to
                    return False
                continue
            route = self.placement.route
            where = {"model": route.model, "deployment": route.deployment_name, "node": route.node}
            log.warning("request_moved", **where, attempt=self._number, tokens=len(self._tokens))
            tracing.event("sluice.request_moved", {f"sluice.{name}": value for name, value in where.items()})
            return True
        return False

    def _resumed(self) -> Resumed | None:
        if not self._tokens or self._seed is None:
            return None
        return Resumed(tuple(self._tokens), self._usage, self._seed)

    async def _is_allowed_more(self) -> bool:
        """Wait until more may be generated than there is: an engine takes nothing at its allowance."""
        try:
            async with asyncio.timeout(PAUSE_SECONDS):
                while not self._is_cancelled() and self._allowed()[0] <= len(self._tokens):
                    if self._allowed()[1]:
                        return False
                    self._more_allowed.clear()
                    await self._more_allowed.wait()
        except TimeoutError:
            return False
        return True

    def _fail(self, end: EngineError | Finished) -> None:
        """Leave the replica on which an attempt, or its preparation, ended so."""
        flight = self.placement.flight
        if isinstance(end, EngineError):
            if end.may_have_run and flight is not None:
                self.may_have_run = True
                self._supervise(flight.engine.cancel(self._id))
            is_adapters = end.code in ADAPTERS_OWN
            self.placement.note_failure(end.message, is_adapters=is_adapters)
        else:
            self.may_have_run = True
            message = end.error.message if end.error is not None else "it stopped the request"
            is_adapters = end.error is not None and end.error.code in ADAPTERS_OWN
            self.placement.note_failure(message, is_adapters=is_adapters)

    def _whole(self, end: Finished) -> Finished:
        """Return the end with the usage that is known, where an engine that went on was lost before it told any."""
        return end if end.usage.completion >= self._usage.completion else replace(end, usage=self._usage)


def _is_of_prompt(delta: Delta) -> bool:
    """Whether it has log-probabilities of the prompt and nothing of an answer, so that it can be told later or anew."""
    return bool(delta.prompt_logprobs) and not (
        delta.usage.completion
        or delta.text
        or delta.tokens
        or delta.reasoning
        or delta.calls
        or delta.ended
        or delta.logprobs
    )
