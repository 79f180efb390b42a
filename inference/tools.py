"""The functions that a model may call, as they cross the engine seam: plain immutable data."""

from __future__ import annotations

from enum import StrEnum

from inference.values import value


class ToolMode(StrEnum):
    """Whether the model calls functions: as it likes, never, or at least once."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@value
class Function:
    """A function that the client can call: `parameters` is the JSON Schema of its arguments, in JSON, or nothing.

    The arguments of a `strict` one are held to that schema. The `name` of one in a `namespace` begins with that.
    """

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False
    namespace: str = ""

    @property
    def own_name(self) -> str:
        """Its name without that of its namespace."""
        return self.name.removeprefix(_prefix(self.namespace))


def in_namespace(namespace: str | None, name: str) -> str:
    """Return what the model calls the function `name` of a namespace."""
    return _prefix(namespace) + name


def _prefix(namespace: str | None) -> str:
    if not namespace:
        return ""
    return namespace if namespace.endswith("__") else f"{namespace}__"


@value
class Tools:
    """A request's functions, of which the model may call the `allowed` (empty: all).

    Without `parallel` an answer ends behind its first call. `param` is what the client calls the field that says when
    they are called, for errors.
    """

    functions: tuple[Function, ...]
    mode: ToolMode = ToolMode.AUTO
    allowed: tuple[str, ...] = ()
    parallel: bool = True
    param: str = "tool_choice"

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that the model may call."""
        if self.mode is ToolMode.NONE:
            return ()
        return tuple(function for function in self.functions if not self.allowed or function.name in self.allowed)

    @property
    def texts(self) -> tuple[str, ...]:
        """The functions' texts, as a model reads them."""
        return tuple(
            text for function in self.functions for text in (function.name, function.description, function.parameters)
        )

    @property
    def characters(self) -> int:
        """The length of the functions' texts."""
        return sum(map(len, self.texts))
