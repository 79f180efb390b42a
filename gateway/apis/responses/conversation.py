"""The conversation before a request: stored turns, and stored items that it refers to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings

from base.database.threads import DatabaseThreads
from base.ids import request_id_in
from gateway.apis.responses import rows
from gateway.apis.responses.input_items import messages_of
from gateway.apis.responses.items import references_in, response_of
from gateway.apis.responses.models import StoredResponse
from gateway.apis.responses.rows import Owner
from gateway.errors.refusal import Refusal
from gateway.runtime.principals import Principal
from gateway.wire.decode import decode, invalid
from gateway.wire.parts import Reading
from inference.messages import Message
from routing.tasks import is_automatic

MOST_READ = 16  # times the most bytes of a request: so many are read of the responses that its items stand in

HOW_TO_STORE = (
    "Send 'store': true with the request that makes it; or let the tenant's owners choose on the settings page that "
    "responses are stored unless a request forbids it"
)

_ENDED = frozenset({"completed", "incomplete", "cancelled"})
_Items = dict[tuple[UUID | None, str], msgspec.Raw]  # by response and name


class Earlier(NamedTuple):
    """The conversation before a request: its stored messages, and the model that gave its last answer, ""
    where none is known.
    """

    messages: tuple[Message, ...] = ()
    model: str = ""


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


class _Model(msgspec.Struct):
    model: str


def owner_of(principal: Principal) -> Owner:
    """Whose responses `principal` has."""
    return Owner(principal.tenant, principal.project)


async def turns_before(threads: DatabaseThreads, owner: Owner, previous: str) -> Earlier:
    """Return the stored conversation that the response `previous` ends; a 400 Refusal where there is none."""
    identifier = request_id_in(previous)
    if identifier is None:
        raise missing(previous)
    return await threads.run(lambda: _earlier(turns_of(owner, identifier, previous)), owner=owner.tenant)


def turns_of(owner: Owner, last: UUID, shown: str) -> list[Any]:
    """Return the turns of the conversation that the response `last` ends, the first one first; a 400 Refusal where one
    is gone or there is too much of it. `shown` is what the client calls it.
    """
    most = settings.SLUICE_MAX_BODY_BYTES
    turns = rows.conversation(owner, last, most)
    if not turns:
        raise missing(shown)
    if turns[-1].status not in _ENDED:
        state = turns[-1].status.replace("_", " ")
        raise Refusal(400, "previous_response_unfinished", f"'{shown}' is {state}.", param="previous_response_id")
    first = turns[0]
    if first.total > most or len(turns) >= rows.MOST_TURNS:
        text = f"The conversation has over {rows.MOST_TURNS} turns or {most:,} bytes: send what matters as 'input'."
        raise Refusal(400, "conversation_too_long", text, param="previous_response_id")
    if first.previous is not None:
        raise missing(f"resp_{first.previous.hex}")
    return turns


def missing(shown: str) -> Refusal:
    """The 400 for a response to go on from that isn't there."""
    text = (
        f"Previous response '{shown[:100]}' not found: it was not stored, is deleted or has expired, or isn't yours. "
        f"{HOW_TO_STORE}; or send the whole conversation as 'input'."
    )
    return Refusal(400, "previous_response_not_found", text, param="previous_response_id")


async def with_items(
    threads: DatabaseThreads, owner: Owner, items: str | Sequence[msgspec.Raw]
) -> str | list[msgspec.Raw]:
    """Return a request's input with the stored items that it refers to in their places; a 404 Refusal for one that
    isn't stored.
    """
    references = references_in(items)
    if not references or isinstance(items, str):
        return items if isinstance(items, str) else list(items)
    responses = {index: response_of(identifier) for index, identifier in references.items()}
    wanted = {response for response in responses.values() if response is not None}
    found = await threads.run(lambda: _stored(owner, wanted, set(references.values())), owner=owner.tenant)
    whole = list(items)
    for index, identifier in references.items():
        item = found.get((responses[index], identifier))
        if item is None:
            text = (
                f"Item '{identifier[:100]}' not found: items are kept of stored responses. {HOW_TO_STORE}; or send the "
                "item itself, as the AI SDK does with providerOptions: { openai: { store: false } }."
            )
            raise Refusal(404, "item_not_found", text, param=f"input[{index}].id")
        whole[index] = item
    most = settings.SLUICE_MAX_BODY_BYTES
    if sum(len(bytes(item)) for item in whole) > most:
        raise _too_much_input(most)
    return whole


def _stored(owner: Owner, responses: Collection[UUID], names: Collection[str]) -> _Items:
    """Return those of the items called `names` that stand in `responses`; a 400 Refusal where there is too much of
    them, or of what they stand in. Beside them a few responses at a time are in memory.
    """
    most = settings.SLUICE_MAX_BODY_BYTES
    sizes = rows.sizes(owner, responses)
    if sum(sizes.values()) > MOST_READ * most:
        text = f"The responses whose items 'input' refers to have more than {MOST_READ * most:,} bytes: send the items."
        raise invalid("input", text)
    found: _Items = {}
    total = 0
    for row in rows.each(owner, sizes, most):
        for item in items_of(row):
            name = msgspec.json.decode(item, type=_Named).id
            if name in names:
                found[row.id, name] = item.copy()  # or all of its response would stay in memory
                total += len(bytes(item))
        if total > most:
            raise _too_much_input(most)
    return found


def _too_much_input(most: int) -> Refusal:
    return invalid("input", f"With the items that it refers to, 'input' has more than {most:,} bytes.")


def items_of(row: StoredResponse) -> list[msgspec.Raw]:
    """Return the items that a response was given, and those that it answered."""
    return decode(list[msgspec.Raw], bytes(row.input)) + decode(_Output, bytes(row.body)).output


def _earlier(turns: Sequence[StoredResponse]) -> Earlier:
    messages = messages_of([item for row in turns for item in items_of(row)], Reading())
    models = (decode(_Model, bytes(row.body)).model for row in reversed(turns))
    # One in the background that was cancelled before it was routed still has the name that was asked for.
    return Earlier(messages, next((model for model in models if not is_automatic(model)), ""))
