"""Stored responses: read, listed, deleted (``/v1/responses/{id}`` and what is below it)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec

from base.http.asgi import Receive, Scope, Send, encode, send_bytes, send_json
from base.http.disconnect import watching
from base.http.sse import EventStream, event
from base.ids import request_id_in
from gateway.apis.responses import rows
from gateway.apis.responses.conversation import items_of, owner_of, turns_of
from gateway.apis.responses.events import QUEUED_EVENTS, only_end
from gateway.apis.responses.models import StoredResponse
from gateway.apis.responses.rows import Owner
from gateway.apis.responses.runs import attached, cancelled, cancelled_unstored, claim_of
from gateway.apis.responses.stored_wire import DeletedResponse, InputItems, ItemsQuery, RetrieveQuery
from gateway.apis.responses.wire import check_included
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.kept import write_answer
from gateway.http.query import query_of
from gateway.http.request import require_method, runtime_of
from gateway.wire.decode import decode, invalid
from gateway.wire.demands import Fields


class _Error(msgspec.Struct):
    code: str = "answer_lost"
    message: str = "This response ended without an answer."


class _Ended(msgspec.Struct):
    response: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    error: _Error | None = None


async def stored_response(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a stored response, or delete it."""
    require_method(scope, "GET", "DELETE")
    owner = owner_of(await principal_of(scope))
    identifier, shown = _asked_for(scope)
    threads = runtime_of(scope).threads
    if scope["method"] == "DELETE":
        if not await threads.run(lambda: rows.remove(owner, identifier), owner=owner.tenant):
            raise not_found(shown)
        await send_json(send, 200, DeletedResponse(shown))
        return
    query = query_of(scope, RetrieveQuery)
    fields = Fields()
    fields.check(query)
    check_included(query.include, fields)
    if query.starting_after is not None and not query.stream:
        raise invalid("starting_after", "'starting_after' is only allowed when 'stream' is true.")
    row = await threads.run(lambda: _found(owner, identifier), owner=owner.tenant)
    if row is None:
        raise not_found(shown)
    if query.stream:
        await _stream(scope, receive, send, row, query.starting_after)
    else:
        await send_bytes(send, 200, bytes(row.body), "application/json")


async def cancel_response(scope: Scope, receive: Receive, send: Send) -> None:
    """Cancel a response in the background, and answer what became of it; one that has ended stays as it is."""
    require_method(scope, "POST")
    owner = owner_of(await principal_of(scope))
    identifier, shown = _asked_for(scope)
    runtime = runtime_of(scope)
    row = await runtime.threads.run(lambda: _found(owner, identifier), owner=owner.tenant)
    if row is None:
        await send_bytes(send, 200, await _cancelled_unstored(scope, owner, identifier, shown), "application/json")
        return
    if not row.is_background:
        raise Refusal(400, "not_in_background", "Only responses in the background are cancelled.", param="response_id")
    if row.status in rows.RUNNING:
        await cancelled(runtime, owner, identifier)
        ended = await runtime.threads.run(lambda: _found(owner, identifier), owner=owner.tenant)
        row = ended or row
    await send_bytes(send, 200, bytes(row.body), "application/json")


async def _cancelled_unstored(scope: Scope, owner: Owner, identifier: UUID, shown: str) -> bytes:
    """Cancel a response of a websocket that outlives it, and return what became of it."""
    last = await cancelled_unstored(runtime_of(scope), owner, identifier, scope)
    if last is None:
        raise not_found(shown)
    ended = msgspec.json.decode(last, type=_Ended)
    response = bytes(ended.response)
    if not response:
        error = ended.error or _Error()
        raise Refusal(409, error.code, error.message, param="response_id", should_retry=False)
    return response


async def _stream(scope: Scope, receive: Receive, send: Send, row: StoredResponse, after: int | None) -> None:
    if not row.is_background:
        raise invalid("stream", "Only responses in the background are streamed again: leave 'stream' out.")
    runtime = runtime_of(scope)
    principal = await principal_of(scope)
    owner = owner_of(principal)
    async with watching(scope, receive) as client:
        answer = await attached(runtime, claim_of(owner, row.id), scope)
        if answer is not None:
            await write_answer(answer, scope, principal, client, send, after=after)
            return
        # It may have ended just now.
        newer = await runtime.threads.run(partial(_found, owner, row.id), owner=owner.tenant)
        row = newer or row
        body = msgspec.Raw(bytes(row.body))
        last = only_end(row.status, body, QUEUED_EVENTS if after is None else after + 1)
        async with EventStream(send, {}) as stream:
            client.stop()
            await stream.finish(event(encode(last), last["type"]))


def _found(owner: Owner, identifier: UUID) -> StoredResponse | None:
    row = rows.find(owner, identifier)
    if row is not None:
        rows.fail_if_lost(row)
    return row


async def input_items(scope: Scope, receive: Receive, send: Send) -> None:
    """List what a stored response was made from: the turns of the conversation before it, and its own input."""
    require_method(scope, "GET")
    owner = owner_of(await principal_of(scope))
    identifier, shown = _asked_for(scope)
    query = query_of(scope, ItemsQuery)
    check_included(query.include, Fields())
    items = await runtime_of(scope).threads.run(lambda: _items(owner, identifier, shown), owner=owner.tenant)
    await send_json(send, 200, _page(items, query))


def not_found(shown: str) -> Refusal:
    """The 404 for a response that isn't stored."""
    text = f"Response '{shown[:100]}' not found: it was not stored, is deleted or has expired, or isn't yours."
    return Refusal(404, "response_not_found", text, param="response_id")


def _asked_for(scope: Scope) -> tuple[UUID, str]:
    shown = scope["url_route"]["kwargs"]["response_id"]
    identifier = request_id_in(shown)
    if identifier is None:
        raise not_found(shown)
    return identifier, shown


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
