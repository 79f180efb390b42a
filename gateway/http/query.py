"""The query of a path, and the page of a list that it asks for."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec

from base.http.asgi import Scope
from gateway.wire.decode import decode, invalid, require_no_nul

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
