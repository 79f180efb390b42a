"""What arrives of an answer in one read, as the seam's Deltas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inference.clients.remote.sse import Call, Function
from inference.types import CallPiece, Delta, Usage


class Pieces:
    """What arrived together: runs of text, of reasoning, and of pieces of calls, in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, list[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, kind: str, text: str) -> None:
        """Add a piece of "text" or of "reasoning"."""
        if text:
            self._run(kind).append(text)

    def call(self, calls: list[CallPiece]) -> None:
        """Add pieces of calls."""
        if calls:
            self._run("calls").extend(calls)

    def deltas(self, usage: Usage, *, is_new: bool) -> Iterator[Delta]:
        """Yield a Delta of each run; one without text where there is none, but `usage` is new."""
        for kind, pieces in self._runs:
            match kind:
                case "text":
                    yield Delta("".join(pieces), usage)
                case "reasoning":
                    yield Delta("", usage, reasoning="".join(pieces))
                case _:
                    yield Delta("", usage, calls=tuple(pieces))
        if is_new and not self._runs:
            yield Delta("", usage)

    def _run(self, kind: str) -> list[Any]:
        if not self._runs or self._runs[-1][0] != kind:
            self._runs.append((kind, []))
        return self._runs[-1][1]


def call_piece(call: Call) -> CallPiece:
    """Return a piece of a call as the seam has it."""
    function = call.function or Function()
    return CallPiece(call.id or "", function.name or "", function.arguments or "")
