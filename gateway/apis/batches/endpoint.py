"""``/v1/batches``: making, listing, showing and cancelling the batches of the key's project."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from uuid import UUID

from gateway.apis.batches.wire import PREFIX, BatchList, BatchObject, BatchQuery, BatchRequest, batch_list, batch_object
from gateway.apis.files.wire import PREFIX as FILE_PREFIX
from gateway.batches import services
from gateway.batches.models import Batch
from gateway.durable.delivery import delivering
from gateway.errors.refusal import Refusal
from gateway.http.endpoint import Call, endpoint
from gateway.http.request import id_in
from gateway.wire.decode import invalid, require_no_nul


@endpoint(
    "POST",
    "/v1/batches",
    scope="batches.write",
    summary="Create a batch",
    takes=BatchRequest,
    gives=BatchObject,
    example={"input_file_id": "file-id", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
)
async def batches_create(call: Call[BatchRequest]) -> BatchObject:
    """Runs the requests of a file within 24 hours, at the models' rates for batches."""
    return batch_object(await _made(call))


@endpoint("GET", "/v1/batches", scope="batches.read", summary="List batches", takes=BatchQuery, gives=BatchList)
async def batches_list(call: Call[BatchQuery]) -> BatchList:
    """The batches of the key's project, the newest first."""
    query, principal, after = call.request, call.principal, None
    if query.after is not None and (after := id_in(query.after, PREFIX)) is None:
        raise invalid("after", "'after' has to be the id of a batch.")
    list_them = partial(services.batches_of, principal.tenant, principal.project, after=after, limit=query.limit + 1)
    return batch_list(await call.in_database(list_them), query.limit)


@endpoint("GET", "/v1/batches/{id}", scope="batches.read", summary="Show a batch", gives=BatchObject)
async def batches_show(call: Call[None]) -> BatchObject:
    """One batch."""
    return await _object(call, services.batch_of)


@endpoint("POST", "/v1/batches/{id}/cancel", scope="batches.write", summary="Cancel a batch", gives=BatchObject)
async def batches_cancel(call: Call[None]) -> BatchObject:
    """Sends no more of its requests; those that are on their way are answered."""
    return await _object(call, services.cancel_batch)


async def _object(call: Call[None], found_by: Callable[[UUID, UUID, UUID], Batch | None]) -> BatchObject:
    """Return the batch that the path names, as it is `found_by` tenant, project and id."""
    identifier, found = id_in(call.named, PREFIX), None
    if identifier is not None:
        find = partial(found_by, call.principal.tenant, call.principal.project, identifier)
        found = await call.in_database(find)
    if found is None:
        text = f"No batch '{call.named[:100]}' of this project is known."
        raise Refusal(404, "batch_not_found", text, param="batch_id")
    return batch_object(found)


async def _made(call: Call[BatchRequest]) -> Batch:
    request, principal = call.request, call.principal
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
    made = await call.in_database(draft)
    add = partial(services.add_batch, made)
    if (delivery := delivering.get()) is not None:  # then it is made with the answer that names it, or neither is
        delivery.also.append(add)
    else:
        await call.in_database(add)
    return made
