"""Whether a response is stored, and the row that it then gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from uuid import UUID

import msgspec
import structlog

from base.database.threads import DatabaseThreads
from base.http import encode
from base.ids import request_id_in
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import owner_of
from gateway.apis.responses.events import ResponseEvents
from gateway.apis.responses.items import listed, listed_messages
from gateway.apis.responses.response_object import Response
from gateway.durable.delivery import Outcome, delivering
from gateway.errors.refusal import Refusal
from gateway.generation.generation import Generation
from gateway.generation.items import GenerationEvent
from gateway.runtime.principals import Principal
from inference.messages import Message
from tenancy.models import Tenant

log = structlog.get_logger(__name__)


def is_stored(principal: Principal, store: bool | None) -> bool:
    """Whether a request with this `store` is stored: its tenant's setting decides where it doesn't say. A 400 Refusal
    for one that asks for what the tenant forbids.
    """
    if store and principal.response_storage == Tenant.Storage.FORBIDDEN:
        raise forbidden("store")
    return principal.response_storage == Tenant.Storage.BY_DEFAULT if store is None else store


def forbidden(param: str) -> Refusal:
    """The 400 for a request that asks in the field `param` for what its tenant forbids."""
    text = f"Your account doesn't let responses be stored: leave '{param}' out, or have an owner allow it."
    return Refusal(400, "storing_forbidden", text, param=param)


class Storing:
    """The stored form of the request `identifier`, whose `given` is its input as the client sent it.

    `previous` is the stored response that it continues; `unstored` are the messages of one that isn't stored.
    """

    def __init__(
        self,
        principal: Principal,
        identifier: UUID,
        given: str | Sequence[msgspec.Raw],
        *,
        previous: str | None = None,
        unstored: Sequence[Message] = (),
    ) -> None:
        self._owner = owner_of(principal)
        self._identifier = identifier
        self._previous = None if previous is None or unstored else request_id_in(previous)
        self._given = given
        self._unstored = unstored

    def add(self, response: Response, *, is_background: bool = False) -> None:
        """Store the response as it is. Runs on a database thread."""
        items = listed_messages(self._unstored, self._identifier)
        items += listed(self._given, self._identifier, len(items))
        rows.add(
            self._owner,
            self._identifier,
            status=response.status,
            given=encode(items),
            body=encode(response),
            previous=self._previous,
            is_background=is_background,
        )

    async def end(self, response: Response, threads: DatabaseThreads) -> None:
        """Store the ended response, unless it failed; where it isn't stored, let it say so."""
        if response.status == "failed":
            response.store = False
            return
        if (delivery := delivering.get()) is not None:  # then it is stored with the kept answer, or neither is
            delivery.also.append(lambda: self.add(response))
            return
        try:
            await threads.run(lambda: self.add(response))
        except Exception:
            # The answer is whole and paid for: it is delivered, and says itself that it can't be read again.
            log.exception("response_not_stored")
            response.store = False


class StoredAnswer:
    """A generation whose response is stored at its end, before its reader learns of that; a failed one is not."""

    def __init__(
        self, generation: Generation, events: ResponseEvents, storing: Storing, threads: DatabaseThreads
    ) -> None:
        self._generation = generation
        self._events = events
        self._storing = storing
        self._threads = threads

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return self._generation.headers

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes of the request that change nothing."""
        return self._generation.not_enforced

    @property
    def ended_at_once(self) -> Outcome | None:
        """The outcome of one that has ended with nothing before it."""
        return self._generation.ended_at_once

    async def events(self) -> AsyncGenerator[GenerationEvent, None]:
        """Yield what happens, `Outcome` last: by then the response is stored, or says that it is not."""
        async with aclosing(self._generation.events()) as events:
            async for event in events:
                if isinstance(event, Outcome):
                    await self._storing.end(self._events.ended(event), self._threads)
                yield event

    def client_left(self) -> None:
        """Stop."""
        self._generation.client_left()
