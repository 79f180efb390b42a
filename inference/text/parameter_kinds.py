"""The kinds of values that a function's parameters may have, as its schema says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LOCAL = ("#/$defs/", "#/definitions/")
_MOST_STEPS = 256
_KINDS: Mapping[type, str] = {
    bool: "boolean",
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
    tuple: "array",
    dict: "object",
    type(None): "null",
}


def kinds_of(parameters: str) -> dict[str, frozenset[str]]:
    """Return the types of each parameter of the schema `parameters`, "integer" for whole numbers; none where the schema
    permits any, or can't be read.
    """
    try:
        schema = json.loads(parameters or "{}")
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        return {name: _kinds(given, schema) for name, given in properties.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _kinds(given: Any, root: Mapping[str, Any]) -> frozenset[str]:
    kinds = [_kind(branch) for branch in branches(given, root)]
    return frozenset[str]() if frozenset() in kinds else frozenset[str]().union(*kinds)


def _kind(branch: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({str(branch["type"])} if "type" in branch else ())


def branches(given: Any, root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return schemas of which a value fits one if it fits `given`: each with one type at most, references resolved.

    Raise ValueError for more than can be meant, such as a reference to itself.
    """
    found: list[dict[str, Any]] = []
    waiting = [given]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return found
        branch = waiting.pop(0)
        if not isinstance(branch, dict):
            found.append({})
        elif (options := _options(branch, root)) is None:
            found.append(branch)
        else:
            waiting = [*options, *waiting]
    raise ValueError("references and choices that never end")


def _options(given: dict[str, Any], root: Mapping[str, Any]) -> list[Any] | None:
    """Return the schemas of which `given` is a choice; None where it is none."""
    rest = {key: value for key, value in given.items() if key not in {"$ref", "anyOf", "oneOf", "type", "enum"}}
    values = given.get("enum")
    if isinstance(reference := given.get("$ref"), str) and reference.startswith(LOCAL):
        _, group, name = reference.split("/", 2)
        return [{**_member(_member(root, group), name), **rest}]
    if isinstance(options := given.get("anyOf", given.get("oneOf")), list):
        return [{**rest, **option} if isinstance(option, dict) else {} for option in options]
    if isinstance(types := given.get("type"), list):
        return [{**given, "type": kind} for kind in types]
    if isinstance(values, list) and "type" not in given:
        told = {kind: [value for value in values if kind_of(value) == kind] for kind in map(kind_of, values)}
        return [{**rest, "type": kind, "enum": some} for kind, some in told.items()]
    if "const" in given and "type" not in given:
        return [{**given, "type": kind_of(given["const"])}]
    return None


def _member(given: Any, name: str) -> dict[str, Any]:
    member = given.get(name) if isinstance(given, dict) else None
    return member if isinstance(member, dict) else {}


def kind_of(value: Any) -> str:
    """Return the type of a value in JSON."""
    return _KINDS[type(value)]
