"""``/v1/batches``: making, listing, showing and cancelling the batches of the key's project."""

from __future__ import annotations

from functools import partial
from itertools import chain
from uuid import UUID

from base.http.asgi import Receive, Scope, Send, send_json
from gateway.apis.batches.wire import PREFIX, BatchQuery, BatchRequest, batch_list, batch_object
from gateway.apis.files.wire import PREFIX as FILE_PREFIX
from gateway.batches import selectors, services
from gateway.batches.models import Batch
from gateway.durable.delivery import delivering
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.query import id_in, query_of
from gateway.http.request import read_body, require_method, runtime_of
from gateway.runtime.principal import Principal
from gateway.wire.decode import decode, invalid, require_no_nul


async def batches(scope: Scope, receive: Receive, send: Send) -> None:
    """List the project's batches, or make one."""
    require_method(scope, "GET", "POST")
    principal = await principal_of(scope)
    if scope["method"] == "POST":
        request = decode(BatchRequest, await read_body(scope, receive, principal.tenant))
        made = await _made(scope, principal, request)
        await send_json(send, 200, batch_object(made))
        return
    query = query_of(scope, BatchQuery)
    after = None
    if query.after is not None and (after := id_in(query.after, PREFIX)) is None:
        raise invalid("after", "'after' has to be the id of a batch.")
    list_them = partial(selectors.batches_of, principal.tenant, principal.project, after=after, limit=query.limit + 1)
    found = await runtime_of(scope).threads.run(list_them, owner=principal.tenant)
    await send_json(send, 200, batch_list(found, query.limit))


async def batch(scope: Scope, receive: Receive, send: Send) -> None:
    """Show one batch."""
    require_method(scope, "GET")
    principal = await principal_of(scope)
    read = partial(selectors.batch_of, principal.tenant, principal.project, _id_of(scope))
    found = await runtime_of(scope).threads.run(read, owner=principal.tenant)
    await send_json(send, 200, batch_object(_known(scope, found)))


async def cancel(scope: Scope, receive: Receive, send: Send) -> None:
    """Cancel one batch."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    stop = partial(services.cancel_batch, principal.tenant, principal.project, _id_of(scope))
    found = await runtime_of(scope).threads.run(stop, owner=principal.tenant)
    await send_json(send, 200, batch_object(_known(scope, found)))


async def _made(scope: Scope, principal: Principal, request: BatchRequest) -> Batch:
    input_file = id_in(request.input_file_id, FILE_PREFIX)
    if input_file is None:
        raise invalid("input_file_id", "'input_file_id' has to be the id of a file.")
    for text in chain.from_iterable((request.metadata or {}).items()):
        require_no_nul("metadata", text)
    assert principal.api_key is not None, "batches are made with a key"
    expiry = request.output_expires_after
    draft = partial(
        services.new_batch,
        tenant=principal.tenant,
        project=principal.project,
        api_key=principal.api_key,
        endpoint=request.endpoint,
        input_file=input_file,
        metadata=request.metadata,
        output_seconds=None if expiry is None else expiry.seconds,
    )
    threads = runtime_of(scope).threads
    made = await threads.run(draft, owner=principal.tenant)
    add = partial(services.add_batch, made)
    if (delivery := delivering.get()) is not None:  # then it is made with the answer that names it, or neither is
        delivery.also.append(add)
    else:
        await threads.run(add, owner=principal.tenant)
    return made


def _id_of(scope: Scope) -> UUID:
    identifier = id_in(scope["url_route"]["kwargs"]["batch_id"], PREFIX)
    if identifier is None:
        raise _unknown(scope)
    return identifier


def _known(scope: Scope, found: Batch | None) -> Batch:
    if found is None:
        raise _unknown(scope)
    return found


def _unknown(scope: Scope) -> Refusal:
    name = scope["url_route"]["kwargs"]["batch_id"]
    return Refusal(404, "batch_not_found", f"No batch '{name[:100]}' of this project is known.", param="batch_id")
