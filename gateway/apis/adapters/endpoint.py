"""``/v1/adapters``: making, listing, showing and deleting a project's own models."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

from base import storage
from base.errors import ServiceError
from base.http.asgi import Receive, Scope, Send, send_json
from base.ids import uuid7
from fleet.adapters import adapters_of, add_adapter, check_adapter, remove_adapter
from gateway.apis.adapters.wire import AdapterDeleted, AdapterList, AdapterObject, AdapterRequest, adapter_object
from gateway.apis.files.wire import PREFIX
from gateway.batches.files import selectors
from gateway.batches.files.models import StoredFile
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.kept import take_request
from gateway.http.query import id_in
from gateway.http.request import read_body, require_method, runtime_of
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Runtime
from gateway.wire.decode import decode, invalid, require_no_nul
from routing.models import Adapter
from tenancy.models import Tenant

PURPOSE = "adapter"


async def adapters(scope: Scope, receive: Receive, send: Send) -> None:
    """List the adapters that the project may use, or make one of a file."""
    require_method(scope, "GET", "POST")
    principal = await principal_of(scope)
    runtime = runtime_of(scope)
    if scope["method"] == "POST":
        request = decode(AdapterRequest, await read_body(scope, receive, principal.tenant))
        require_no_nul("base", request.base)
        require_no_nul("description", request.description)
        await take_request(runtime, principal)  # every gateway and worker hears of an adapter that comes or goes
        await send_json(send, 200, _told(runtime, await _made(runtime, principal, request)))
        return
    found = await runtime.threads.run(partial(adapters_of, principal.own), owner=principal.tenant)
    await send_json(send, 200, AdapterList(data=[_told(runtime, *one) for one in found]))


async def adapter(scope: Scope, receive: Receive, send: Send) -> None:
    """Show or delete one adapter."""
    require_method(scope, "GET", "DELETE")
    principal = await principal_of(scope)
    runtime = runtime_of(scope)
    name = scope["url_route"]["kwargs"]["name"]
    if "\0" in name:  # PostgreSQL compares no such text
        raise _unknown(name)
    if scope["method"] == "DELETE":
        await take_request(runtime, principal)
        try:
            is_removed = await runtime.threads.run(partial(remove_adapter, name, principal.own), owner=principal.tenant)
        except ServiceError as error:
            raise Refusal(403, "adapter_shared", error.message, param="name") from error
        if not is_removed:
            raise _unknown(name)
        await send_json(send, 200, AdapterDeleted(id=name))
        return
    for found, obstacle in await runtime.threads.run(partial(adapters_of, principal.own), owner=principal.tenant):
        if found.model.name == name:
            await send_json(send, 200, _told(runtime, found, obstacle))
            return
    raise _unknown(name)


async def _made(runtime: Runtime, principal: Principal, request: AdapterRequest) -> Adapter:
    """Return the adapter that the request makes of a file of the key's project."""
    identifier = id_in(request.file_id, PREFIX)
    file = None
    if identifier is not None:
        read = partial(selectors.file_of, principal.tenant, principal.project, identifier)
        file = await runtime.threads.run(read, owner=principal.tenant)
    if file is None:
        raise invalid("file_id", f"No file '{request.file_id}' of this project is known.")
    if file.purpose != PURPOSE:
        raise invalid("file_id", f"The file wasn't uploaded for the purpose '{PURPOSE}'.")
    draft = storage.drafts() / uuid7().hex
    try:
        check = partial(_check, principal, request, file.bytes)
        await runtime.threads.run(check, owner=principal.tenant)  # before anything is copied
        await asyncio.to_thread(_copy, file, draft)
        return await runtime.threads.run(partial(_add, principal, request, draft), owner=principal.tenant)
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
