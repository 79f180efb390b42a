"""Whether a foreign server held an answer to what was asked of it, as far as a look at the answer shows."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.types import Guidance, GuidanceKind


def follows(guidance: Guidance, text: str) -> bool:
    """Return whether a whole answer may have been held to `guidance`: it is one of the choices, or JSON, of a schema
    for objects one with all that is required at its top. Regular expressions and grammars are not looked at.
    """
    if guidance.kind is GuidanceKind.CHOICE:
        return text in guidance.choices
    if guidance.kind not in {GuidanceKind.JSON_SCHEMA, GuidanceKind.JSON_OBJECT}:
        return True
    try:
        found: Any = msgspec.json.decode(text)
        is_schema = guidance.kind is GuidanceKind.JSON_SCHEMA
        schema: Any = msgspec.json.decode(guidance.source) if is_schema else {"type": "object"}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return True
    return isinstance(found, dict) and found.keys() >= set(schema.get("required", ()))
