"""Rules in Lark that hold arguments to their schema where they are not written as an object in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from inference.errors import InvalidRequestError
from inference.guidance.library import options_of
from inference.text.call_formats import STRING, Body, CallFormat
from inference.text.parameter_kinds import LOCAL, branches

_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$schema", "x-guidance"})
_DEFINED = frozenset({"$defs", "definitions"})
_OBJECT = _NOTES | _DEFINED | {"type", "properties", "required", "additionalProperties"}
_TEXT = _NOTES | {"type", "enum", "const", "minLength", "maxLength", "pattern", "format"}
_ARRAY = _NOTES | {"type", "items", "minItems", "maxItems"}
_KEY = re.compile(r"[^\s<>\"'=:,{}()\[\]]+")  # of an argument: others would end their marker
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]+)+",
}
_OTHERS = {"type": ["number", "boolean", "null", "array", "object"]}  # than texts
_ANY_TEXT = r"/(.|\n)*/"
_MOST_DEEP = 16
_MOST_RULES = 4096


class ArgumentRules:
    """Writes the rules of one format's arguments; `literal` writes a text, of which some parts may be control tokens.

    `rules` are those that were written. Raise `InvalidRequestError` with the name of the function and what its schema
    has that can't be held.
    """

    def __init__(self, calls: CallFormat, literal: Callable[[str], str], marks: frozenset[str]) -> None:
        self.rules: list[str] = []
        self._calls = calls
        self._literal = literal
        self._marks = marks  # those of the format that are control tokens
        self._name = ""
        self._root: Mapping[str, Any] = {}
        self._has_any = False
        self._options = options_of(strict=True)

    def arguments(self, name: str, schema: Mapping[str, Any] | None, *, strict: bool = True) -> tuple[str, bool]:
        """Return the rule of the arguments of the function `name`, and whether they are held to `schema` as far as that
        is asked: of any where that is None, or isn't `strict` and can't be held.
        """
        self._options = options_of(strict=strict)
        rules, has_any = [*self.rules], self._has_any
        try:
            return self._held(name, schema), True
        except InvalidRequestError as error:
            if strict or error.code != "guidance_unsupported":
                raise
        self.rules, self._has_any = rules, has_any
        return self._held(name, None), False

    def _held(self, name: str, schema: Mapping[str, Any] | None) -> str:
        self._name, self._root = name, schema or {}
        try:
            return self._arguments(schema)
        except (TypeError, ValueError, AttributeError) as error:
            message = f"the parameters of {name!r} can't be read: {error}"
            raise InvalidRequestError(message, code="guidance_invalid", param="tools") from error

    def _arguments(self, schema: Mapping[str, Any] | None) -> str:
        members = self._members(self._root) if schema is not None else None
        if members is None:
            return self._any_arguments()
        told = {key: self._pair(key, given, 0) for key, (given, _) in members.items()}
        needed = {key: is_needed for key, (_, is_needed) in members.items()}
        if self._calls.body is Body.PARAMETERS:
            return " ".join(rule if needed[key] else f"{rule}?" for key, rule in told.items()) or '""'
        return self._sequence(told, needed)

    def _rule(self, text: str, *, is_lazy: bool = False) -> str:
        if len(self.rules) > _MOST_RULES:
            raise self._refusal("its size")
        name = f"arg_{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if is_lazy else ''}: {text}")
        return name

    def _terminal(self, text: str) -> str:
        name = f"ARG_{len(self.rules)}"
        self.rules.append(f"{name}: {text}")
        return name

    def _sequence(self, told: Mapping[str, str], needed: Mapping[str, bool]) -> str:
        """Return the rule of pairs with commas between them, of which those that aren't `needed` may be left out."""
        comma = self._literal(", " if self._calls.body is Body.PYTHON else ",")
        first = later = '""'
        for key, rule in reversed(list(told.items())):
            skipped_first, skipped_later = ("", "") if needed[key] else (f" | {first}", f" | {later}")
            first, later = f"({rule} {later}{skipped_first})", f"({comma} {rule} {later}{skipped_later})"
            first, later = self._rule(first), self._rule(later)
        return first

    def _members(self, schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]] | None:
        """Return the properties of an object and whether they are needed; None where it may have any."""
        self._check(schema, _OBJECT)
        required = schema.get("required", [])
        properties = {
            **schema.get("properties", {}),
            **{key: {} for key in required if key not in schema.get("properties", {})},
        }
        more = schema.get("additionalProperties", True)
        if not properties and more is not False:
            if isinstance(more, dict) and more:
                raise self._refusal("additionalProperties")
            return None
        for key in properties:
            if not _KEY.fullmatch(key):
                raise self._refusal(f"the property {key!r}")
        return {key: (given, key in required) for key, given in properties.items()}

    def _pair(self, key: str, given: Any, depth: int) -> str:
        if self._calls.body is Body.PARAMETERS:
            before, middle, behind = self._calls.parameter
            told = [
                f"{self._literal(before + key + middle.replace(STRING, kind))} {value}"
                for branch in self._branches(given)
                for kind, value in self._parameter(branch, behind)
            ]
            return self._rule(" | ".join(told))
        value = self._json(given) if self._calls.body is Body.PYTHON else self._value(given, depth + 1)
        return self._rule(f"{self._literal(key + ('=' if self._calls.body is Body.PYTHON else ':'))} {value}")

    def _parameter(self, branch: Mapping[str, Any], behind: str) -> list[tuple[str, str]]:
        """Return whether a parameter's value is a text and the rule of that with what stands behind, for each way."""
        ways: list[tuple[str, str]] = []
        if (is_any := self._is_any(branch)) or branch.get("type") == "string":
            ways.append(("true", self._text(branch, behind)))
        if not ways or (is_any and STRING in self._calls.parameter[1]):
            ways.append(("false", f"{self._json(_OTHERS if is_any else branch)} {self._literal(behind)}"))
        return ways

    def _is_any(self, branch: Mapping[str, Any]) -> bool:
        if {"type", "enum", "const"} & branch.keys():
            return False
        self._check(branch, _NOTES | _DEFINED)
        return True

    def _branches(self, given: Any) -> list[dict[str, Any]]:
        if isinstance(given, dict) and "oneOf" in given:
            raise self._refusal("'oneOf'")
        try:
            return branches(given, self._root)
        except ValueError as error:
            raise self._refusal(str(error)) from error

    def _text(self, branch: Mapping[str, Any], behind: str) -> str:
        """Return the rule of a text as it is, and what stands behind it."""
        self._check(branch, _TEXT | _DEFINED)
        marker = behind.strip()
        values = [branch["const"]] if "const" in branch else branch.get("enum")
        if values is not None:
            kept = [value for value in values if isinstance(value, str) and marker not in value]
            if not kept:
                raise self._refusal("a choice without a text")
            return f"({' | '.join(map(json.dumps, kept))}) {self._literal(behind)}"
        conditions = [_ANY_TEXT]
        least, most = branch.get("minLength", 0), branch.get("maxLength")
        if least or most is not None:
            conditions.append(f"/(.|\\n){{{int(least)},{'' if most is None else int(most)}}}/")
        if (pattern := branch.get("pattern")) is not None:
            conditions.append(self._pattern(str(pattern)))
        if (name := branch.get("format")) is not None:
            if name not in _FORMATS:
                raise self._refusal(f"the format {name!r}")
            conditions.append(f"/{_FORMATS[name]}/")
        if any(marker.startswith(mark) for mark in self._marks):
            text = self._terminal(" & ".join(conditions))
            if newline := behind[: behind.index(marker)]:
                text = self._terminal(f"{text} {json.dumps(newline)}")
            return f"{text} {self._literal(behind[len(newline) :])}"
        conditions.append(f"~/(.|\\n)*{in_lark(re.escape(marker))}(.|\\n)*/")
        ended = behind[: behind.index(marker) + len(marker)]
        value = self._rule(f"{self._terminal(' & '.join(conditions))} {json.dumps(ended)}", is_lazy=True)
        return f"{value} {self._literal(behind[len(ended) :])}"

    def _pattern(self, pattern: str) -> str:
        inner = pattern.removeprefix("^")
        has_end = inner.endswith("$") and not inner.endswith("\\$")
        inner = inner.removesuffix("$") if has_end else inner
        is_one = inner == pattern or "|" not in inner  # else an anchor may belong to the first or the last choice alone
        if not is_one or re.search(r"(?<![\\\[])[\^$]|\(\?[=!<]|\\[bB1-9]", inner):
            raise self._refusal(f"the pattern {pattern!r}")
        before, behind = (
            "" if is_held else r"(.|\n)*" for is_held in (inner != pattern and pattern[0] == "^", has_end)
        )
        return f"/{before}(?:{in_lark(inner)}){behind}/"

    # -- objects with bare keys -----------------------------------------------------------------------------------

    def _value(self, given: Any, depth: int) -> str:
        """Return the rule of a value among bare keys."""
        if depth > _MOST_DEEP:
            raise self._refusal("objects that are nested too deeply")
        return f"({' | '.join(self._branch(branch, depth) for branch in self._branches(given))})"

    def _branch(self, branch: Mapping[str, Any], depth: int) -> str:
        kind = branch.get("type")
        if self._is_any(branch):
            return self._any("any_value")
        if kind == "string":
            return f"{self._literal(self._calls.quote)} {self._text(branch, self._calls.quote)}"
        if kind == "array":
            return self._array(branch, depth)
        return self._object(branch, depth) if kind == "object" else self._json(branch)

    def _object(self, branch: Mapping[str, Any], depth: int) -> str:
        members = self._members(branch)
        if members is None:
            return self._any("any_object")
        told = {key: self._pair(key, given, depth) for key, (given, _) in members.items()}
        return f'"{{" {self._sequence(told, {key: needed for key, (_, needed) in members.items()})} "}}"'

    def _array(self, branch: Mapping[str, Any], depth: int) -> str:
        self._check(branch, _ARRAY | _DEFINED)
        least, most = int(branch.get("minItems", 0)), branch.get("maxItems")
        if most == 0:
            return '"[]"'
        item = self._value(branch.get("items", {}), depth + 1)
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else int(most) - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _any(self, rule: str) -> str:
        """Return the name of a `rule` of values of any kind."""
        if not self._has_any:
            self._has_any = True
            text = f"{self._literal(self._calls.quote)} {self._text({}, self._calls.quote)}"
            other = self._json({"type": ["number", "boolean", "null"]})
            self.rules += [
                f"any_value: {text} | any_object | any_array | {other}",
                'any_array: "[" (any_value ("," any_value)*)? "]"',
                'any_object: "{" any_pairs "}"',
                'any_pairs: (any_pair ("," any_pair)*)?',
                'any_pair: /[A-Za-z0-9_.-]+/ ":" any_value',
            ]
        return rule

    # -- arguments of any kind ------------------------------------------------------------------------------------

    def _any_arguments(self) -> str:
        key = "/[A-Za-z0-9_.-]+/"
        match self._calls.body:
            case Body.PARAMETERS:
                before, middle, behind = self._calls.parameter
                ways = [middle.replace(STRING, kind) for kind in (("true", "false") if STRING in middle else ("",))]
                told = [f"{self._literal(before)} {key} {self._literal(way)} {self._text({}, behind)}" for way in ways]
                return f"({' | '.join(told)})*"
            case Body.PYTHON:
                pair = f'{key} "=" %json {json.dumps({"x-guidance": self._options})}'
                return f'({pair} (", " {pair})*)?'
            case _:
                return self._any("any_pairs")

    def _json(self, given: Any) -> str:
        for reference in re.findall(r'"\$ref": "([^"]*)"', json.dumps(given)):
            if not reference.startswith(LOCAL):
                raise self._refusal(f"'$ref' to {reference!r}")
        defined = {key: self._root[key] for key in _DEFINED if key in self._root}
        schema = {**given, **defined, "x-guidance": self._options} if isinstance(given, dict) else given
        return f"%json {json.dumps(schema)}"

    def _check(self, schema: Mapping[str, Any], known: frozenset[str]) -> None:
        if unknown := sorted(schema.keys() - known):
            raise self._refusal(f"'{unknown[0]}'")

    def _refusal(self, what: str) -> InvalidRequestError:
        message = f"the parameters of {self._name!r} can't be enforced because of {what}: leave that out"
        return InvalidRequestError(message, code="guidance_unsupported", param="tools")


def in_lark(pattern: str) -> str:
    """Return a regular expression as it stands between slashes."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n")
