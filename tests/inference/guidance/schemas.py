"""Random JSON Schemas of growing difficulty, whose answers end soon."""

from __future__ import annotations

import random
from typing import Any

FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
PATTERNS = ("^[A-Z]{2}-[0-9]{4}$", "^(red|green|blue)$", "^[a-z_]{1,8}$", "^#[0-9a-f]{6}$")


def random_schema(chance: random.Random, depth: int) -> dict[str, Any]:
    """Return a schema with at most `depth` levels below it."""
    leaves = (_text, _number, _whole, _fixed, _one_of)
    inner = (_object, _object, _array, _any_of, _all_of, _referring)
    return chance.choice(leaves if depth <= 0 else inner + leaves)(chance, depth - 1)


def random_object(chance: random.Random, depth: int) -> dict[str, Any]:
    """Return a schema of objects, whose inner ones may refer to a recursive definition."""
    node = {
        "type": "object",
        "properties": {
            "value": random_schema(chance, 0),
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, **_object(chance, depth - 1)}


def _text(chance: random.Random, _: int) -> dict[str, Any]:
    kind = chance.randrange(3)
    if kind == 0:
        return {"type": "string", "format": chance.choice(FORMATS)}
    if kind == 1:
        return {"type": "string", "pattern": chance.choice(PATTERNS)}
    least = chance.randrange(3)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randrange(10)}


def _number(chance: random.Random, _: int) -> dict[str, Any]:
    return {"type": "number", "minimum": -chance.randrange(100), "exclusiveMaximum": chance.randrange(1, 1000)}


def _whole(chance: random.Random, _: int) -> dict[str, Any]:
    bounds = {"minimum": chance.randrange(-50, 0), "maximum": chance.randrange(1, 5000)}
    return {"type": "integer", **bounds, **({"multipleOf": chance.choice((2, 5, 7))} if chance.random() < 0.3 else {})}


def _fixed(chance: random.Random, _: int) -> dict[str, Any]:
    return {"const": chance.choice((None, True, 17, "fixed", [1, "a"], {"k": [None]}))}


def _one_of(chance: random.Random, _: int) -> dict[str, Any]:
    return {"enum": chance.sample(["a", "b c", "ü", 1, 2.5, None, True, {"x": 1}], chance.randrange(1, 6))}


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(["id", "name", "a b", "größe", "tags", "at", "items", "x-y", '"q"'], chance.randrange(1, 6))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth) for name in names},
        "required": [name for name in names if chance.random() < 0.8],
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    if chance.random() < 0.3:
        return {
            "type": "array",
            "prefixItems": [random_schema(chance, depth) for _ in range(2)],
            "items": False,
            "minItems": 2,
        }
    least = chance.randrange(2)
    return {
        "type": "array",
        "items": random_schema(chance, depth),
        "minItems": least,
        "maxItems": least + chance.randrange(1, 4),
    }


def _any_of(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(chance, depth) for _ in range(chance.randrange(2, 4))]}


def _all_of(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"allOf": [_whole(chance, depth), {"type": ["integer", "null"], "minimum": -10}]}


def _referring(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"$ref": "#/$defs/node"}
