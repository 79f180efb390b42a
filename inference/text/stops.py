"""Stop strings in text that arrives in pieces; only text that may become a stop string is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces.

    The stop string that is complete first wins, and of those that end at the same character the longest: the result is
    the same however the text is cut into pieces.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that may be sent now. After a match `matched` is the stop string, and no more text comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        found = self._first_complete(buffer)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return buffer[:start]
        cut = self._partial_from(buffer)
        self._held = buffer[cut:]
        return buffer[:cut]

    def finish(self) -> str:
        """Return what was held back, when the text ends without a match."""
        rest, self._held = self._held, ""
        return rest

    def _first_complete(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _partial_from(self, buffer: str) -> int:
        """Where the longest suffix that is a proper prefix of some stop begins, or the end of `buffer`."""
        longest = max(len(stop) for stop in self._stops)
        for start in range(max(0, len(buffer) - longest + 1), len(buffer)):
            tail = buffer[start:]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return len(buffer)
