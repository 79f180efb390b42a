"""Pieces of an answer that arrive in one read, as the seam's Deltas, and which call a piece of a call belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from inference.clients.remote.sse import Call, Chosen, Likely, Logprobs
from inference.types import CallPiece, Delta, PositionLogprobs, TokenLogprob, Usage

_UNTOLD = -1


class Pieces:
    """Pieces that arrived together: runs of text, of reasoning, and of pieces of calls, in order."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, list[Any]]] = []
        self._logprobs: dict[int, list[PositionLogprobs]] = {}  # of the runs of text, by their places

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, kind: str, text: str, logprobs: Logprobs | None = None) -> None:
        """Add a piece of "text", with its tokens where these were asked for, or of "reasoning"."""
        if text:
            self._run(kind).append(text)
            if logprobs is not None:
                self._logprobs.setdefault(len(self._runs) - 1, []).extend(map(_position, logprobs.content or ()))

    def call(self, calls: list[CallPiece]) -> None:
        """Add pieces of calls."""
        if calls:
            self._run("calls").extend(calls)

    def deltas(self, usage: Usage, *, is_new: bool) -> Iterator[Delta]:
        """Yield a Delta of each run; one without text where there is none, but `usage` is new."""
        for place, (kind, pieces) in enumerate(self._runs):
            match kind:
                case "text":
                    yield Delta("".join(pieces), usage, logprobs=tuple(self._logprobs.get(place, ())))
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


def _position(chosen: Chosen) -> PositionLogprobs:
    """Return a position as the seam has it; which ids the tokens have, these servers don't say."""
    top = chosen.top_logprobs or []
    rank = next((rank for rank, likely in enumerate(top, 1) if likely.token == chosen.token), len(top) + 1)
    return PositionLogprobs(_token(chosen), rank, tuple(map(_token, top)))


def _token(likely: Likely) -> TokenLogprob:
    return TokenLogprob(_UNTOLD, likely.logprob, likely.token)


@dataclass(slots=True)
class _Call:
    """A call so far; without `index` it isn't told yet, and `held` are its arguments."""

    index: int | None = None
    id: str = ""
    name: str = ""
    held: str = ""


class Calls:
    """The calls of one answer, whose pieces may come in turn, and with other things between them.

    A piece belongs to the call of its index, where the server says none to that of its id, else to the last one. One
    with a name begins another call where its id is another (some servers give every call the same index), or where it
    has neither index nor id and the name is another.
    """

    def __init__(self) -> None:
        self._known: dict[int | str, _Call] = {}
        self._last: _Call | None = None
        self._told = 0

    def take(self, piece: Call) -> CallPiece | None:
        """Return what a piece adds to its call. A call isn't told before its name, since no API can begin one."""
        call = self._of(piece)
        call.id = call.id or piece.id or ""
        call.name = call.name or piece.name
        if call.index is not None:
            return CallPiece(arguments=piece.arguments, index=call.index) if piece.arguments else None
        call.held += piece.arguments
        if not call.name:
            return None
        call.index, self._told = self._told, self._told + 1
        return CallPiece(call.id or f"call_{uuid4().hex}", call.name, call.held, call.index)

    def _of(self, piece: Call) -> _Call:
        keys = [key for key in (piece.index, piece.id) if key not in (None, "")]
        call = self._known.get(keys[0]) if keys else self._last
        if call is None or _is_another(call, piece, is_keyed=bool(keys)):
            call = _Call()
        self._known |= dict.fromkeys(keys, call)
        self._last = call
        return call


def _is_another(call: _Call, piece: Call, *, is_keyed: bool) -> bool:
    has_other_id = bool(piece.id and call.id) and piece.id != call.id
    is_named = bool(piece.name and call.name)
    return is_named and (has_other_id or (not is_keyed and piece.name != call.name))
