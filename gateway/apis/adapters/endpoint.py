"""``/v1/adapters``: making, listing, showing and deleting a project's own models."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

from base import storage
from base.errors import ServiceError
from base.ids import uuid7
from fleet.adapters import adapters_of, add_adapter, check_adapter, remove_adapter
from gateway.apis.adapters.wire import AdapterDeleted, AdapterList, AdapterObject, AdapterRequest, adapter_object
from gateway.apis.files.wire import PREFIX
from gateway.batches import files
from gateway.batches.files import StoredFile
from gateway.errors.refusal import Refusal
from gateway.http.durable import take_request
from gateway.http.endpoint import Call, endpoint
from gateway.http.request import id_in
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from gateway.wire.decode import invalid, require_no_nul
from routing.models import Adapter
from tenancy.models import Tenant

PURPOSE = "adapter"


@endpoint(
    "POST",
    "/v1/adapters",
    scope="adapters.write",
    summary="Make an adapter",
    takes=AdapterRequest,
    gives=AdapterObject,
    example={"base": "a-model", "name": "tickets", "file_id": "file-0199", "config": {"peft_type": "LORA", "r": 8}},
)
async def adapters_create(call: Call[AdapterRequest]) -> AdapterObject:
    """Makes a model of the tenant's own: `base` with a LoRA adapter in PEFT's format. `file_id` names its
    adapter_model.safetensors, uploaded with the purpose `adapter`; `config` is its adapter_config.json.
    """
    require_no_nul("base", call.request.base)
    require_no_nul("description", call.request.description)
    await take_request(call.runtime, call.principal)  # every gateway and worker hears of one that comes or goes
    return _told(call.runtime, await _made(call))


@endpoint("GET", "/v1/adapters", scope="adapters.read", summary="List adapters", gives=AdapterList)
async def adapters_list(call: Call[None]) -> AdapterList:
    """The tenant's own, each with whether it can be served."""
    return AdapterList(data=[_told(call.runtime, *one) for one in await _all(call)])


@endpoint("GET", "/v1/adapters/{id:path}", scope="adapters.read", summary="Show an adapter", gives=AdapterObject)
async def adapters_show(call: Call[None]) -> AdapterObject:
    """By the name of its model."""
    for found, obstacle in await _all(call):
        if found.model.name == call.named:
            return _told(call.runtime, found, obstacle)
    raise _unknown(call.named)


@endpoint("DELETE", "/v1/adapters/{id:path}", scope="adapters.write", summary="Delete an adapter", gives=AdapterDeleted)
async def adapters_delete(call: Call[None]) -> AdapterDeleted:
    """Withdraws its model; requests that run with it end with it."""
    name, own = call.named, call.principal.own
    if "\0" in name:  # PostgreSQL compares no such text
        raise _unknown(name)
    await take_request(call.runtime, call.principal)
    try:
        is_removed = await call.in_database(partial(remove_adapter, name, own))
    except ServiceError as error:
        raise Refusal(403, "adapter_shared", error.message, param="name") from error
    if not is_removed:
        raise _unknown(name)
    return AdapterDeleted(id=name)


async def _all(call: Call[None]) -> list[tuple[Adapter, str]]:
    return await call.in_database(partial(adapters_of, call.principal.own))


async def _made(call: Call[AdapterRequest]) -> Adapter:
    """Return the adapter that the request makes of a file of the key's project."""
    principal, request = call.principal, call.request
    identifier = id_in(request.file_id, PREFIX)
    file = None
    if identifier is not None:
        file = await call.in_database(partial(files.file_of, principal.tenant, principal.project, identifier))
    if file is None:
        raise invalid("file_id", f"No file '{request.file_id}' of this project is known.")
    if file.purpose != PURPOSE:
        raise invalid("file_id", f"The file wasn't uploaded for the purpose '{PURPOSE}'.")
    draft = storage.drafts() / uuid7().hex
    try:
        await call.in_database(partial(_check, principal, request, file.bytes))  # before anything is copied
        await asyncio.to_thread(_copy, file, draft)
        return await call.in_database(partial(_add, principal, request, draft))
    except ServiceError as error:
        raise Refusal(400, "adapter_refused", error.message, param=error.field or None) from error
    except OSError as error:
        text = "The file's content isn't there any more: its operator may know why."
        raise Refusal(404, "file_content_missing", text) from error
    finally:
        await asyncio.to_thread(draft.unlink, missing_ok=True)


def _check(principal: Principal, request: AdapterRequest, size: int) -> None:
    check_adapter(
        base=request.base,
        config=request.config,
        size=size,
        name=request.name,
        tenant=Tenant.objects.get(id=principal.tenant),
    )


def _add(principal: Principal, request: AdapterRequest, weights: Path) -> Adapter:
    return add_adapter(
        base=request.base,
        config=request.config,
        weights=weights,
        name=request.name,
        description=request.description,
        tenant=Tenant.objects.get(id=principal.tenant),
        project=principal.project,
    )


def _copy(file: StoredFile, draft: Path) -> None:
    with closing(storage.read(file)) as stored, draft.open("wb") as copy:
        shutil.copyfileobj(stored, copy)


def _told(runtime: Runtime, adapter: Adapter, obstacle: str = "") -> AdapterObject:
    """Return the adapter for clients; `obstacle` is why the plan doesn't serve it."""
    reason = runtime.engines.adapter_state(adapter.base.name, str(adapter.id))
    return adapter_object(adapter, reason, obstacle)


def _unknown(name: str) -> Refusal:
    return Refusal(404, "adapter_not_found", f"This project has no adapter '{name[:120]}'.", param="name")
