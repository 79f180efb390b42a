"""Schemas that aren't strict: without the patterns that can't be held, which a compiler of grammars refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from inference.types import Guidance, GuidanceKind

_BEYOND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # look-around, and references back: no automaton has them
_VALUES = frozenset({"const", "default", "enum", "examples"})  # keywords whose values are no schemas
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def may_need_loosening(text: str) -> bool:
    """Return whether a schema may have such a pattern, without reading it."""
    return '"pattern"' in text and _BEYOND.search(text.replace("\\\\", "\\")) is not None


def loosened(schema: Any) -> Any:
    """Return a schema without such patterns."""
    if isinstance(schema, list):
        return [loosened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name in _VALUES else _of_names(value) if name in _NAMED else loosened(value)
        for name, value in schema.items()
        if not (name == "pattern" and isinstance(value, str) and _BEYOND.search(value))
    }


def _of_names(schemas: Any) -> Any:
    """Return the same of schemas by names of the client's, which may be those of keywords."""
    return {name: loosened(one) for name, one in schemas.items()} if isinstance(schemas, dict) else schemas


def loosened_guidance(guidance: Guidance) -> Guidance:
    """Return what an answer is held to, without such patterns where the client isn't strict about its schema."""
    if guidance.strict or guidance.kind is not GuidanceKind.JSON_SCHEMA or not may_need_loosening(guidance.source):
        return guidance
    try:
        schema = json.loads(guidance.source)
    except (ValueError, RecursionError):
        return guidance  # whoever compiles it says so
    loose = loosened(schema)
    return guidance if loose == schema else replace(guidance, source=json.dumps(loose), without=("pattern",))
