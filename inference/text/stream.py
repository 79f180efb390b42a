"""The text of one sequence while it is generated: detokenised, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from inference.text.detokenizer import Detokenizer
from inference.text.stops import StopMatcher


class TextStream:
    """Detokenizer and stop strings of one sequence; the text of its first `min_tokens` tokens is not searched.

    `prefix` is text that stands before all of it, to be told by whoever owns the stream. `tokens` counts those that it
    got, up to the one that completed a stop string.
    """

    __slots__ = ("_detokenizer", "_min_tokens", "_stops", "prefix", "tokens")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(decode, prompt)
        self._stops = StopMatcher(stops)
        self._min_tokens = min_tokens
        self.tokens = 0
        self.prefix = ""

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    def push(self, tokens: Iterable[int]) -> str:
        """Return the text that `tokens` add; empty after a match."""
        return "".join(self._push(token) for token in tokens)

    def finish(self) -> str:
        """Return what was held back, at the end of the tokens; it may still complete a stop string."""
        text = self._stops.push(self._detokenizer.finish())
        return text if self.matched is not None else text + self._stops.finish()

    def _push(self, token: int) -> str:
        if self.matched is not None:
            return ""
        self.tokens += 1
        text = self._detokenizer.push(token)
        return self._stops.push(text) if self.tokens > self._min_tokens else text
