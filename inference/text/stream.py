"""The text of one sequence while it is generated: detokenised, up to the first stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inference.text.answer import AnswerParser
from inference.text.detokenizer import Detokenizer
from inference.text.stops import StopMatcher


class TextStream:
    """Detokenizer and stop strings of one sequence; the text of its first `min_tokens` tokens is not searched.

    `prefix` is text that stands before all of it, to be told by whoever owns the stream. `tokens` counts those that it
    got, up to the one that completed a stop string.

    With a `parser` the text goes there, and `push` and `finish` return none: `thought` counts the tokens of reasoning,
    and `spoken` says of each token since it was emptied whether it is of the text.
    """

    __slots__ = ("_detokenizer", "_min_tokens", "_stops", "parser", "prefix", "spoken", "thought", "tokens")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        parser: AnswerParser | None = None,
    ) -> None:
        self._detokenizer = Detokenizer(decode, prompt)
        self._stops = StopMatcher(stops)
        self._min_tokens = min_tokens
        self.tokens = 0
        self.prefix = ""
        self.parser = parser
        self.thought = 0
        self.spoken: list[bool] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows belongs to it: behind a stop string, or the only call that there may be."""
        return self._stops.matched is not None or (self.parser is not None and self.parser.is_over)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    def push(self, tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add; empty once it is over."""
        if len(tokens) == 1:
            return self._push(tokens[0])
        return "".join([self._push(token) for token in tokens])

    def finish(self, *, is_cut: bool = False) -> str:
        """Return what was held back, at the end of the tokens; it may still complete a stop string. `is_cut` says
        whether the model would have gone on.
        """
        text = self._stops.push(self._detokenizer.finish())
        text = text if self.matched is not None else text + self._stops.finish()
        if self.parser is None:
            return text
        self.parser.push(text)
        self.parser.finish(is_cut=is_cut and self.matched is None)
        return ""

    def _push(self, token: int) -> str:
        if self.is_over:
            return ""
        self.tokens += 1
        text = self._detokenizer.push(token)
        if self.tokens > self._min_tokens:
            text = self._stops.push(text)
        if self.parser is not None:
            self._parse(self.parser, text)
            return ""
        return text

    def _parse(self, parser: AnswerParser, text: str) -> None:
        thinks, calls = parser.is_thinking, parser.is_calling
        parser.push(text)
        if self.matched is not None:
            parser.finish()
        thinks, calls = thinks or parser.is_thinking, calls or parser.is_calling
        self.thought += thinks
        self.spoken.append(not (thinks or calls))
