"""Stored responses: read, listed, deleted (``/v1/responses/{id}`` and what is below it)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta

from base.http import EventStream, encode, event, send_bytes, watching
from base.ids import request_id_in
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import items_of, owner_of, turns_of
from gateway.apis.responses.events import QUEUED_EVENTS, only_end
from gateway.apis.responses.models import StoredResponse
from gateway.apis.responses.response_object import Response
from gateway.apis.responses.rows import Owner
from gateway.apis.responses.runs import attached, cancelled, cancelled_unstored, claim_of
from gateway.apis.responses.wire import check_included
from gateway.errors.refusal import Refusal
from gateway.http.durable import write_answer
from gateway.http.endpoint import Call, endpoint
from gateway.wire.common import ShortText
from gateway.wire.decode import decode, invalid
from gateway.wire.demands import Anything, Fields, Only

Included = Annotated[list[ShortText], Meta(max_length=16)]


class RetrieveQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/responses/{id}``. What was asked for when the response was made is always included."""

    include: Included = msgspec.field(default_factory=list)
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    include_obfuscation: Annotated[Anything, Only("false")] = UNSET


class ItemsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of ``GET /v1/responses/{id}/input_items``."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: ShortText | None = None
    include: Included = msgspec.field(default_factory=list)


class InputItems(msgspec.Struct, kw_only=True):
    """A page of the items that a response was made from."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(msgspec.Struct):
    """Says that a response is gone."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(msgspec.Struct):
    """How many tokens a response's input has where it would run."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class _Error(msgspec.Struct):
    code: str = "answer_lost"
    message: str = "This response ended without an answer."


class _Ended(msgspec.Struct):
    response: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    error: _Error | None = None


@endpoint(
    "GET",
    "/v1/responses/{id}",
    scope="responses.read",
    summary="Show a stored response",
    takes=RetrieveQuery,
    gives=Response,
    streams=Response,
)
async def responses_show(call: Call[RetrieveQuery]) -> None:
    """A response of this project that was stored. With `stream`, the events of one in the background, from behind
    number `starting_after` on.
    """
    identifier, query, fields = _asked_for(call), call.request, Fields()
    fields.check(query)
    check_included(query.include, fields)
    if query.starting_after is not None and not query.stream:
        raise invalid("starting_after", "'starting_after' is only allowed when 'stream' is true.")
    row = await _found(call, identifier)
    if row is None:
        raise not_found(call.named)
    if query.stream:
        await _stream(call, row)
    else:
        await send_bytes(call.send, 200, bytes(row.body), "application/json")


@endpoint(
    "DELETE",
    "/v1/responses/{id}",
    scope="responses.write",
    summary="Delete a stored response",
    gives=DeletedResponse,
)
async def responses_delete(call: Call[None]) -> DeletedResponse:
    """Deletes it for good; what continues it can't be continued any more."""
    owner, identifier = owner_of(call.principal), _asked_for(call)
    if not await call.in_database(lambda: rows.remove(owner, identifier)):
        raise not_found(call.named)
    return DeletedResponse(call.named)


@endpoint(
    "POST",
    "/v1/responses/{id}/cancel",
    scope="responses.write",
    summary="Cancel a response in the background",
    gives=Response,
)
async def responses_cancel(call: Call[None]) -> None:
    """Ends it; what was generated is charged. One that has ended stays as it is."""
    identifier = _asked_for(call)
    row = await _found(call, identifier)
    if row is None:
        await send_bytes(call.send, 200, await _cancelled_unstored(call, identifier), "application/json")
        return
    if not row.is_background:
        raise Refusal(400, "not_in_background", "Only responses in the background are cancelled.", param="response_id")
    if row.status in rows.RUNNING:
        await cancelled(call.runtime, owner_of(call.principal), identifier)
        row = await _found(call, identifier) or row
    await send_bytes(call.send, 200, bytes(row.body), "application/json")


@endpoint(
    "GET",
    "/v1/responses/{id}/input_items",
    scope="responses.read",
    summary="List a stored response's input",
    takes=ItemsQuery,
    gives=InputItems,
)
async def responses_input_items(call: Call[ItemsQuery]) -> InputItems:
    """The conversation that it continues and its own input, newest first; `limit`, `order` and `after` page it."""
    owner, identifier = owner_of(call.principal), _asked_for(call)
    check_included(call.request.include, Fields())
    return _page(await call.in_database(lambda: _items(owner, identifier, call.named)), call.request)


async def _cancelled_unstored(call: Call[None], identifier: UUID) -> bytes:
    """Cancel a response of a websocket that outlives it, and return what became of it."""
    last = await cancelled_unstored(call.runtime, owner_of(call.principal), identifier, call.scope)
    if last is None:
        raise not_found(call.named)
    ended = msgspec.json.decode(last, type=_Ended)
    response = bytes(ended.response)
    if not response:
        error = ended.error or _Error()
        raise Refusal(409, error.code, error.message, param="response_id", should_retry=False)
    return response


async def _stream(call: Call[RetrieveQuery], row: StoredResponse) -> None:
    if not row.is_background:
        raise invalid("stream", "Only responses in the background are streamed again: leave 'stream' out.")
    owner, after = owner_of(call.principal), call.request.starting_after
    async with watching(call.scope, call.receive) as client:
        answer = await attached(call.runtime, claim_of(owner, row.id), call.scope)
        if answer is not None:
            await write_answer(answer, call.scope, call.principal, client, call.send, after=after)
            return
        row = await _found(call, row.id) or row  # it may have ended just now
        body = msgspec.Raw(bytes(row.body))
        last = only_end(row.status, body, QUEUED_EVENTS if after is None else after + 1)
        async with EventStream(call.send, {}) as stream:
            client.stop()
            await stream.finish(event(encode(last), last["type"]))


async def _found(call: Call[Any], identifier: UUID) -> StoredResponse | None:
    return await call.in_database(partial(_read, owner_of(call.principal), identifier))


def _read(owner: Owner, identifier: UUID) -> StoredResponse | None:
    row = rows.find(owner, identifier)
    if row is not None:
        rows.fail_if_lost(row)
    return row


def not_found(shown: str) -> Refusal:
    """The 404 for a response that isn't stored."""
    text = f"Response '{shown[:100]}' not found: it was not stored, is deleted or has expired, or isn't yours."
    return Refusal(404, "response_not_found", text, param="response_id")


def _asked_for(call: Call[Any]) -> UUID:
    identifier = request_id_in(call.named)
    if identifier is None:
        raise not_found(call.named)
    return identifier


def _items(owner: Owner, identifier: UUID, shown: str) -> list[msgspec.Raw]:
    row = rows.find(owner, identifier)
    if row is None:
        raise not_found(shown)
    before: list[StoredResponse] = []
    if row.previous is not None:
        before = turns_of(owner, row.previous, f"resp_{row.previous.hex}")
    own: list[msgspec.Raw] = decode(list[msgspec.Raw], bytes(row.input))
    return [item for turn in before for item in items_of(turn)] + own


def _page(items: list[msgspec.Raw], query: ItemsQuery) -> InputItems:
    named = [(msgspec.json.decode(item)["id"], item) for item in items]
    if query.order == "desc":
        named.reverse()
    first = 0
    if query.after is not None:
        places = [place for place, (name, _) in enumerate(named) if name == query.after]
        if not places:
            raise invalid("after", f"'{query.after[:100]}' is none of this response's items.")
        first = places[0] + 1
    page = named[first : first + query.limit]
    return InputItems(
        data=[item for _, item in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=first + query.limit < len(named),
    )
