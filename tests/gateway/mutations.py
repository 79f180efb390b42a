"""Bodies for each endpoint of the data plane: valid ones, made from their structs' JSON schemas, and broken ones."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import msgspec

from control.api.data_plane import merged

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**64),
    1e308,
    0.1,
    "",
    " ",
    "\0",
    "x" * 5000,
    "é\u2028\U0001f600",
    "<|im_end|>",
    "auto",
    "fake",
    "{{ 7 * 7 }}",
    "https://example.com/a",
    "data:image/png;base64,AAAA",
    [],
    {},
    [None],
    [[]],
    {"": {}},
    {"type": "function"},
    {"type": "object", "properties": {"x": {"$ref": "#"}}},
    ["a"] * 300,
    [{"role": "user"}],
)
RAW = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe{}",
    b'{"a":' * 100 + b"1" + b"}" * 100,
    b"[" * 3000,
    b'{"model": NaN}',
    b'{"model": "\\ud800"}',
    b'{"model": 1e999999}',
    b'{"model": "fake", "model": 7}',
    b"{}" * 50,
    b"\0" * 100,
)


class Bodies:
    """Random bodies of one struct: `valid` ones, as its schema has them, and `broken` ones; `models` are asked for."""

    def __init__(self, struct: type[msgspec.Struct], models: tuple[str, ...], chance: random.Random) -> None:
        (self._root,), own = msgspec.json.schema_components([struct], ref_template="{name}")
        # What a struct says of an item that is decoded later refers to the whole document.
        self._components = own | merged({"paths": {}})["components"]["schemas"]
        self._models = models
        self._chance = chance

    def valid(self) -> Any:
        """Return a body as its schema has it; rules between its fields may refuse it."""
        return self._value(self._root, "", 0)

    def broken(self, body: Any) -> bytes:
        """Return `body` with a few values changed, or its bytes."""
        chance = self._chance
        if chance.random() < 0.05:
            return chance.choice(RAW)
        body = copy.deepcopy(body)
        for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 5))):
            body = self._changed(body)
        data = json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")
        if chance.random() < 0.1 and data:
            place = chance.randrange(len(data))
            kind = chance.randrange(3)
            if kind == 0:
                return data[:place]
            return data[:place] + bytes([chance.randrange(256)]) + data[place + (kind == 1) :]
        return data

    # -- what a schema has ----------------------------------------------------------------------------------------

    def _value(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        if "$ref" in schema:
            return self._value(self._components[schema["$ref"].rpartition("/")[2]], name, depth)
        if "anyOf" in schema:
            options = [one for one in schema["anyOf"] if depth < 6 or one.get("type") == "null"] or schema["anyOf"]
            return self._value(self._chance.choice(options), name, depth + 1)
        if "enum" in schema or "const" in schema:
            return self._chance.choice(schema.get("enum") or [schema["const"]])
        return self._chance.choice(self._models) if name == "model" else self._typed(schema, name, depth)

    def _typed(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        chance = self._chance
        match schema.get("type"):
            case "object":
                made = self._object(schema, depth)
            case "array":
                least = schema.get("minItems", 0)
                count = 0 if depth > 6 else chance.choice((least, 1, 2, min(4, schema.get("maxItems", 4))))
                made = [self._value(schema.get("items", {}), name, depth + 1) for _ in range(max(least, count))]
            case "string":
                made = chance.choice(("user", "f", "Hello there", "a\nb", "x" * min(300, schema.get("maxLength", 300))))
            case "integer" | "number":
                made = self._number(schema, whole=schema["type"] == "integer")
            case "boolean":
                made = chance.random() < 0.5
            case "null":
                made = None
            case _:
                made = self._junk()
        return made

    def _object(self, schema: dict[str, Any], depth: int) -> Any:
        chance, required = self._chance, set(schema.get("required", ()))
        made = {}
        for name, inner in schema.get("properties", {}).items():
            if name in required or chance.random() < (0.12 if depth < 2 else 0.3):
                made[name] = self._value(inner, name, depth + 1)
        if not schema.get("properties") and chance.random() < 0.5:
            made = chance.choice(({"type": "object"}, {"a": 1}, {"x": "y" * 50}, {"50256": -100}))
        return made

    def _number(self, schema: dict[str, Any], *, whole: bool) -> float:
        least, most = schema.get("minimum", -3), schema.get("maximum", 50)
        least = schema.get("exclusiveMinimum", least)
        place = self._chance.choice((least, most, least + (most - least) * self._chance.random(), 1))
        return min(int(place), 50) if whole else place

    def _junk(self) -> Any:
        return copy.deepcopy(self._chance.choice(JUNK))

    # -- what breaks it -------------------------------------------------------------------------------------------

    def _changed(self, body: Any) -> Any:
        chance = self._chance
        places = list(_places(body))
        if not places:
            return self._junk()
        holder, key = chance.choice(places)
        match chance.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(("n", "extra", "stream", "", "type"))] = self._junk()
            case 2:
                other, name = chance.choice(places)
                if name in other if isinstance(other, dict) else name < len(other):
                    holder[key] = copy.deepcopy(other[name])
            case _:
                holder[key] = self._junk()
        return body


def _places(value: Any) -> Any:
    """Yield every object or list in `value` with each of its keys or numbers."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])
