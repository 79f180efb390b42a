"""Helpers of ASGI endpoints: what the scope of a request has, its method, its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from base.http import ASGIMessage, ClientLeftError, Receive, Scope, header_of
from gateway.concurrency import Cap
from gateway.errors.refusal import Refusal
from gateway.runtime.metrics import Metrics
from gateway.runtime.runtime import Runtime
from gateway.wire.decode import decode, invalid, require_no_nul

MOST_UPLOADED = 64 * 1024 * 1024


def _too_many_uploads() -> Refusal:
    text = f"{MOST_UPLOADED // 1024 // 1024} MiB of your requests are on their way already."
    return Refusal(429, "too_many_uploads", text, headers={"retry-after": "1", "connection": "close"})


# Bytes of bodies that are being received, by tenant or, before that is known, by address.
uploads: Cap[UUID | str] = Cap(MOST_UPLOADED, _too_many_uploads)


def runtime_of(scope: Scope) -> Runtime:
    """The runtime that lifespan opened; a 503 before that."""
    runtime = scope.get("state", {}).get("runtime")
    if runtime is None:
        raise starting()
    return cast("Runtime", runtime)


def starting() -> Refusal:
    """The 503 of a process that isn't open yet."""
    return Refusal(503, "starting", "The gateway is starting.", headers={"retry-after": "1"})


def metrics_of(scope: Mapping[str, Any]) -> Metrics | None:
    """The counters of this process; None before lifespan made them."""
    return scope.get("state", {}).get("metrics")  # type: ignore[no-any-return]


def request_id_of(scope: Scope) -> UUID:
    """The id that `guarded` gave this request."""
    return cast("UUID", scope["request_id"])


def require_method(scope: Scope, *methods: str) -> None:
    """Refuse other methods (405), saying which there are."""
    if scope["method"] not in methods:
        raise not_allowed(scope, *methods)


def not_allowed(scope: Scope, *methods: str) -> Refusal:
    """The 405 that says which methods there are."""
    allowed = ", ".join(methods)
    text = f"{scope['method']} is not allowed here: use {allowed}."
    return Refusal(405, "method_not_allowed", text, headers={"allow": allowed})


async def read_body(scope: Scope, receive: Receive, owner: UUID) -> bytes:
    """Return the whole body; refuse one that is compressed (415), or one too many (429) that `owner`, a tenant, is
    sending at once. `bounded` limits its size and time.
    """
    if (header_of(scope, b"content-encoding") or "identity").lower() != "identity":
        raise Refusal(415, "unsupported_content_encoding", "Send the body without compression.")
    message = await _received(receive)
    chunk: bytes = message.get("body", b"")
    if not message.get("more_body", False):  # it came in one piece, as nearly all do: none of it is on its way
        return chunk
    chunks = [chunk]
    with uploads.share(owner) as take:
        while message.get("more_body", False):
            take(len(chunks[-1]))
            message = await _received(receive)
            chunks.append(message.get("body", b""))
    return b"".join(chunks)


async def _received(receive: Receive) -> ASGIMessage:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeftError
    return message


T = TypeVar("T", bound=msgspec.Struct)

_MOST_FIELDS = 64


def query_of(scope: Scope, kind: type[T]) -> T:
    """Return the path's query as a `kind`, whose fields are texts, numbers or lists of texts; refuse (400) what has no
    place in it. A list's parameter is there once for each text, with or without ``[]`` behind its name.
    """
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"
        )
    except ValueError as error:
        raise invalid("query", "The query can't be read.") from error
    lists = {field.name for field in msgspec.structs.fields(kind) if field.default_factory is list}
    values: dict[str, str | list[str]] = {name: [] for name in lists}
    for name, value in pairs:
        require_no_nul("query", name + value)
        plain = name.removesuffix("[]")
        if plain in lists:
            values[plain] = [*values[plain], value]
        elif name in values:
            raise invalid("query", "A parameter is there twice.")
        else:
            values[name] = value
    return decode(kind, msgspec.json.encode(values), is_lax=True)


def id_in(text: str, prefix: str) -> UUID | None:
    """Return the id that `text` is, after its `prefix`; None for anything else."""
    name = text.removeprefix(prefix)
    if len(name) != 32 or name == text:
        return None
    try:
        return UUID(hex=name)
    except ValueError:
        return None
