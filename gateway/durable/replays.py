"""The kept answers that this process makes or serves: claims, keepers, and where their rows and limits are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec
import structlog
from django.db import Error as DatabaseError

from base.database.threads import DatabaseThreads
from base.errors import DatabaseBusyError
from base.http import Application, Scope
from gateway.concurrency import Cap
from gateway.durable import answers
from gateway.durable.answers import Claim, Found, Stored
from gateway.durable.delivery import Closings
from gateway.durable.follower import Follower
from gateway.durable.keeper import Keeper
from gateway.durable.log import RUN_NUMBERS, EventLog, events_of
from gateway.durable.room import ROOM
from gateway.errors.refusal import Refusal

MOST_BYTES = 64 * 1024 * 1024  # of the answers of one tenant that are being made
MOST_IN_ALL = 512 * 1024 * 1024
STORE_SECONDS = 5.0
RETRY_SECONDS = 0.2
RENEW_SECONDS = 10.0

if TYPE_CHECKING:
    from gateway.durable.mirror import Mirror  # who has no Redis needs not wait for its library

log = structlog.get_logger(__name__)
T = TypeVar("T")


def _too_much_kept() -> Refusal:
    text = "Your answers under idempotency keys take too much memory right now."
    return Refusal(429, "too_much_kept", text, headers={"retry-after": "10"})


def key_reused() -> Refusal:
    """The 422 for a key that stands for another request."""
    text = "This idempotency key was used for another request within 24 hours: take a new key for each request."
    return Refusal(422, "idempotency_key_reused", text, param="idempotency-key", should_retry=False)


def not_known() -> Refusal:
    """The 503 for an answer of which nobody can say right now what became of it."""
    text = "What became of this answer can't be read right now: ask for it again."
    return Refusal(503, "database_unavailable", text, headers={"retry-after": "1"})


class DurableRequest(msgspec.Struct, frozen=True):
    """A request whose answer is kept: `endpoint` answers it, as `run`, unless somebody did or does already. When its
    last reader is gone for `grace` seconds (None: for ever) it is ended.
    """

    claim: Claim
    run: UUID
    endpoint: Application
    scope: Scope
    body: bytes
    grace: float | None


class Answer(msgspec.Struct, frozen=True):
    """The answer to a kept request: a running log, here or elsewhere, or a `stored` one that each reader loads from
    the database.
    """

    is_new: bool  # this request began it
    keeper: Keeper | Follower | None = None
    stored: Callable[[], AbstractAsyncContextManager[EventLog]] | None = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[EventLog]:
        """Yield its events to one more reader; a Refusal where they can't be read, or too much is kept in memory."""
        if self.keeper is not None:
            with self.keeper.reading() as event_log:
                yield event_log
            return
        assert self.stored is not None, "an answer is stored or being made"
        async with self.stored() as event_log:
            yield event_log


class Replays:
    """The kept answers of this process, which is `owner` of their claims.

    Rows are claimed on `threads`, which clients can fill, and stored on `own_threads`; `supervise` runs work to its end
    whatever becomes of its caller.
    """

    def __init__(
        self,
        threads: DatabaseThreads,
        own_threads: DatabaseThreads,
        owner: UUID,
        supervise: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self._threads = threads
        self._own_threads = own_threads
        self._owner = owner
        self._supervise = supervise
        self._keepers: dict[UUID, Keeper] = {}  # by run, until their answer is stored or given up
        self._opening: dict[tuple[UUID, str], tuple[bytes, asyncio.Task[Answer]]] = {}
        self._followers: dict[UUID, Follower] = {}  # by run, of what other gateways make and somebody reads here
        self._bytes: Cap[UUID] = Cap(MOST_BYTES, _too_much_kept)
        self.mirror: Mirror | None = None

    def __len__(self) -> int:
        return len(self._keepers)

    async def require_room(self, claim: Claim) -> None:
        """Raise the 429 Refusal where there is no room in the database for the answer of a claim."""
        if ROOM.is_due(claim.tenant):
            await self._threads.run(partial(answers.require_room, claim), owner=claim.tenant)

    async def answer(self, request: DurableRequest) -> Answer:
        """Return the answer of a request: stored, or being made here or at another gateway.

        Raises a Refusal (422) where the key stands for another request.
        """
        claim = request.claim
        name = (claim.tenant, claim.key)
        digest, opening = self._opening.get(name, (b"", None))
        if opening is None:
            opening = self._supervise(self._open(request))
            self._opening[name] = (claim.digest, opening)
            opening.add_done_callback(partial(self._opened, name))
            return await asyncio.shield(opening)
        if digest != claim.digest:
            raise key_reused()
        return msgspec.structs.replace(await asyncio.shield(opening), is_new=False)

    def _opened(self, name: tuple[UUID, str], opening: asyncio.Task[Answer]) -> None:
        """Remember only what is being made here: it is found without asking the database."""
        if opening.cancelled() or opening.exception() is not None or not opening.result().is_new:
            self._opening.pop(name, None)

    async def _open(self, request: DurableRequest) -> Answer:
        claim = partial(answers.claim, request.claim, request.run, self._owner)
        found = await self._threads.run(claim, owner=request.claim.tenant)
        if found.is_ours:
            return Answer(True, self._begin(request, found))
        if found.is_other:
            raise key_reused()
        if found.is_stored:
            return Answer(False, stored=partial(self._stored, request.claim.tenant, found))
        return Answer(False, self._keepers.get(found.run) or self._follower(request.claim.tenant, found))

    @asynccontextmanager
    async def _stored(self, tenant: UUID, found: Found) -> AsyncIterator[EventLog]:
        """Yield the events of a stored answer, whose bytes count as the tenant's as long as they are read."""
        stored = await self._threads.run(partial(answers.read, found.run), owner=tenant)
        if stored is None:  # it is over in this moment
            raise not_known()
        taken, take = self._taken_by(tenant)
        with taken:
            take(min(len(stored.body), self._bytes.most))  # the largest may be read, where it is alone
            event_log = EventLog(found.restarts * RUN_NUMBERS)
            event_log.begin(stored.head)
            event_log.append(*(events_of(stored.body) if stored.head.is_stream else [stored.body]))
            event_log.end()
            del stored
            yield event_log

    def _follower(self, tenant: UUID, found: Found) -> Follower:
        """Return what follows a run of another gateway for its readers here."""
        run = found.run
        if (follower := self._followers.get(run)) is not None:
            follower.want()
            return follower
        event_log = EventLog(found.restarts * RUN_NUMBERS, lags=True)
        taken, take = self._taken_by(tenant)
        mirrored = None if self.mirror is None else self.mirror.read
        follower = self._followers[run] = Follower(run, event_log, self, mirrored=mirrored, take=take)

        async def follow() -> None:
            with taken:
                try:
                    await follower.run()
                finally:
                    del self._followers[run]

        self._supervise(follow())
        return follower

    def _taken_by(self, tenant: UUID) -> tuple[ExitStack, Callable[[int], None]]:
        """Return what counts the bytes of one answer, with that which gives them back."""
        taken = ExitStack()
        take = taken.enter_context(self._bytes.share(tenant))

        def take_bytes(count: int) -> None:
            if len(self._bytes) + count > MOST_IN_ALL:
                raise _too_much_kept()
            take(count)

        return taken, take_bytes

    def _begin(self, request: DurableRequest, found: Found) -> Keeper:
        tenant, key = request.claim.tenant, request.claim.key
        taken, take = self._taken_by(tenant)
        event_log = EventLog(found.restarts * RUN_NUMBERS)
        keeper = self._keepers[found.run] = Keeper(found.run, self, event_log, grace=request.grace, take=take)

        async def run() -> None:
            with taken:
                try:
                    await keeper.run(request.endpoint, request.scope, request.body)
                finally:
                    self._keepers.pop(found.run, None)
                    self._opening.pop((tenant, key), None)
                    ROOM.note(tenant, sum(map(len, event_log.events)))

        self._supervise(run())
        if self.mirror is not None:
            self._supervise(self.mirror.write(found.run, event_log))
        return keeper

    # -- rows -----------------------------------------------------------------------------------------------------

    async def store(
        self, run: UUID, answer: Stored, closings: Closings, also: list[Callable[[], object]]
    ) -> bool | None:
        """Store the answer of `run`; False when its claim is another's by now, None where the database doesn't answer:
        it may have stored it all the same.
        """
        work: Callable[[], bool | None] = partial(answers.store, run, answer, closings, also)
        return await self._patiently(work, otherwise=None, what="store_answer_failed")

    async def forget(self, run: UUID, *, was_told: bool) -> None:
        """Give the claim of `run` up, or let its lease run out where the database doesn't answer."""
        work: Callable[[], Any] = partial(answers.forget, run, was_told=was_told)
        await self._patiently(work, otherwise=None, what="forget_answer_failed")

    async def seconds_since_reader(self, run: UUID) -> float | None:
        """Return for how long no other gateway has had a reader; None when there was never one. Where the database
        doesn't answer there may be one now.
        """
        work = partial(answers.seconds_since_reader, run)
        return await self._patiently(work, otherwise=0.0, what="look_for_readers_failed")

    async def look(self, run: UUID) -> Found | None:
        """Return what is known of a run of another gateway, to which it tells that somebody reads here; a 503 Refusal
        where the database doesn't answer: the run may well go on.
        """
        return await self._known(partial(answers.look, run), what="look_at_answer_failed")

    async def read(self, run: UUID) -> Stored | None:
        """Return the stored answer of a run of another gateway, None where there is none; a 503 Refusal where the
        database doesn't answer.
        """
        return await self._known(partial(answers.read, run), what="read_answer_failed")

    async def _known(self, work: Callable[[], T], *, what: str) -> T:
        """Return `work()`, or raise the 503 Refusal where the database doesn't answer."""
        patient: Callable[[], T | Refusal] = work
        away: T | Refusal = not_known()
        found = await self._patiently(patient, otherwise=away, what=what)
        if isinstance(found, Refusal):
            raise found
        return found

    async def keep_renewed(self) -> None:
        """Renew the claims of what runs here each `RENEW_SECONDS`, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if self._keepers:
                work: Callable[[], Any] = partial(answers.renew, self._owner, list(self._keepers))
                await self._patiently(work, otherwise=None, what="renew_answers_failed")

    async def _patiently(self, work: Callable[[], T], *, otherwise: T, what: str) -> T:
        """Return `work()`, tried again for `STORE_SECONDS` while the database doesn't answer; then `otherwise`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STORE_SECONDS
        while True:
            try:
                return await self._own_threads.run(work)
            except (DatabaseError, DatabaseBusyError) as error:
                log.warning(what, error=str(error))
                if loop.time() >= until:
                    return otherwise
            await asyncio.sleep(RETRY_SECONDS)
