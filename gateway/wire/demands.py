"""Fields of an API that Sluice doesn't honour: refused, a wish, tried or unread, declared once at the field.

A field without an annotation of these is a demand that is held to: honoured, or refused by its type and bounds. The
check of requests, the header `NOT_ENFORCED`, the reference and the OpenAPI document are made from the declarations.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from gateway.errors.refusal import Refusal

NOT_ENFORCED = "x-sluice-not-enforced"
Anything = Any | UnsetType

_INDEX = re.compile(r"\[\d+\]")


class Only:
    """A demand that can't be held: the field is refused but at `values`, which mean the default, and null.

    `why` says why, where there is more to say than that it doesn't exist yet, `instead` what to send in its place.
    """

    def __init__(self, *values: Any, why: str = "", instead: str = "", code: str = "unsupported_parameter") -> None:
        self.values = values
        self.why = why
        self.instead = instead
        self.code = code

    @property
    def told(self) -> str:
        """The field's meaning, as the documentation has it."""
        why = f" ({self.why})" if self.why else ""
        return f"Not supported{why}: {self.instead or 'leave it out'}."

    def refusal(self, param: str) -> Refusal:
        """The 400 for another value, with the way out."""
        why = f" ({self.why})" if self.why else ""
        shown = " or ".join(map(json.dumps, self.values))
        way_out = self.instead or (f"leave it out or send {shown}" if shown else "leave it out")
        return Refusal(400, self.code, f"'{param}' is not supported{why}: {way_out}.", param=param)


class Wish:
    """A wish: the field is taken, changes nothing, and is told in `NOT_ENFORCED` but at `values`, which ask for
    nothing, and null.
    """

    def __init__(self, *values: Any) -> None:
        self.values = values


class Tried:
    """A wish that is done where the model and its server can; where not, its engine says so and it is told too."""


class Unread:
    """Asks for nothing: what programs give back of an answer, or note for themselves."""


Note = Only | Wish | Tried | Unread


@functools.cache
def notes_of(kind: type[msgspec.Struct]) -> Mapping[str, Note]:
    """Return what the fields of `kind` are declared to be, of those that are."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: _noted(hint, Note) for name, hint in hints.items()}
    return {name: note for name, note in found.items() if note is not None}


@functools.cache
def inner_of(kind: type[msgspec.Struct]) -> Mapping[str, tuple[type[msgspec.Struct], ...]]:
    """Return the fields of `kind` that are structs, with those that each may be."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: tuple(part for part in get_args(hint) if _is_struct(part)) for name, hint in hints.items()}
    return {name: kinds for name, kinds in found.items() if kinds}


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _noted(hint: Any, kind: Any) -> Any:
    return next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, kind)), None)


Reader = Callable[[msgspec.Struct], tuple[Any, ...]]


@functools.cache
def _reading_of(kind: type[msgspec.Struct]) -> tuple[Reader, tuple[Any, ...], Mapping[str, Only | Wish | None]]:
    """Return what reads those fields of `kind` that are looked at, their values where none is given, and what they are
    declared to be: None of a struct with such fields.
    """
    looked_at: dict[str, Only | Wish | None] = {
        name: note for name, note in notes_of(kind).items() if isinstance(note, Only | Wish)
    }
    looked_at |= dict.fromkeys(inner_of(kind).keys() - looked_at.keys())
    names = list(looked_at)
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    left_out = tuple(defaults[name] for name in names)
    if len(names) > 1:
        return operator.attrgetter(*names), left_out, looked_at  # one call for all: a request has dozens of them
    return lambda request: tuple(getattr(request, name) for name in names), left_out, looked_at


class Fields:
    """Looks at the fields of one request; gathers the wishes among them that change nothing."""

    def __init__(self) -> None:
        self._wishes: dict[str, None] = {}

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The wishes, as the reference names their fields."""
        return tuple(self._wishes)

    def wish(self, name: str) -> None:
        """Gather the wish in the field `name`."""
        self._wishes[_INDEX.sub("[]", name)] = None

    def check(self, request: msgspec.Struct, at: str = "") -> None:
        """Gather the wishes in `request`, which stands `at`, and below it; raise a 400 Refusal for a demand that can't
        be held.
        """
        read, left_out, looked_at = _reading_of(type(request))
        values = read(request)
        if values == left_out:
            return
        for given, (name, note) in zip(values, looked_at.items(), strict=True):
            if given is UNSET or given is None:  # which mean the same
                continue
            if note is None:
                if isinstance(given, msgspec.Struct):
                    self.check(given, f"{at}{name}.")
            elif not any(_equal(given, value) for value in note.values):
                if isinstance(note, Only):
                    raise note.refusal(at + name)
                self.wish(at + name)


def not_enforced_header(names: tuple[str, ...]) -> dict[str, str]:
    """Return the header that tells which wishes of a request are not enforced; none where all are."""
    return {NOT_ENFORCED: ", ".join(names)} if names else {}


def _equal(given: object, value: object) -> bool:
    if isinstance(given, bool) or isinstance(value, bool):
        return given is value  # true is not 1 here
    return given == value
