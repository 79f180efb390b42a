"""Writing calls as a model does, for templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inference.text.call_formats import INDEX, Body, CallFormat

WRITABLE = frozenset({Body.OBJECTS, Body.PYTHON})


def written(calls: CallFormat, given: Sequence[tuple[str, Any]]) -> str:
    """Return calls of functions with their arguments in the format `calls`, whose body is `WRITABLE`."""
    one = _keywords if calls.body is Body.PYTHON else _object
    told = [one(calls, name, arguments).replace(INDEX, str(number)) for number, (name, arguments) in enumerate(given)]
    first, last = calls.brackets
    if not first:
        told = [f"{calls.begin}{call}{calls.end}" for call in told]
    inner = f"{first}{calls.between.join(told)}{last}"
    return f"{calls.section[0]}{f'{calls.begin}{inner}{calls.end}' if first else inner}{calls.section[1]}"


def _object(calls: CallFormat, name: str, arguments: Any) -> str:
    (name_key, arguments_key), told = calls.keys, _json(arguments)
    pairs = f'"{name_key}": {_json(name)}, "{arguments_key}": {told}' if name_key else f"{_json(name)}: {told}"
    return f"{{{calls.extra}{pairs}}}"


def _keywords(calls: CallFormat, name: str, arguments: Any) -> str:
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    return f"{name}{calls.middle}{', '.join(f'{key}={value!r}' for key, value in pairs)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
