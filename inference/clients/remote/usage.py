"""The usage of one request, from what the server says and, where it doesn't, from what arrived."""

from __future__ import annotations

from dataclasses import dataclass

from inference.clients.remote import tokens
from inference.types import Usage


@dataclass(frozen=True, slots=True)
class Report:
    """What one event says of the usage so far; None is what it doesn't say, 0 is none.

    `cached` is a part of `prompt`, `reasoning` one of `completion`.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Counter:
    """Counts one request: `prompt` tokens are likely, at most `most_prompt` and `most_output` are paid for.

    A later report never lowers an earlier one, and what one doesn't say leaves what another said. What a server says
    against reason is not believed: more output than was asked for, no output where there was text, a part larger than
    the whole.

    Some servers count in every event but tell only with the last how much of the prompt was cached. A prompt of which
    that isn't known is counted as computed, which is the most that it can cost, and the usage is no exact one.
    """

    def __init__(self, prompt: int, most_prompt: int, most_output: int) -> None:
        self._prompt: int | None = None
        self._cached: int | None = None
        self._completion: int | None = None
        self._reasoning: int | None = None
        self._is_complete = False  # the server has said all that it says
        self._expected = prompt
        self._most_prompt = most_prompt
        self._most_output = most_output
        self.events = 0  # those with output, of at least one token each
        self._size = 0  # bytes of output
        self._unreported = 0  # events with output since the last report of a completion

    def output(self, text: str, events: int = 1) -> None:
        """Count so many events that had this output together."""
        self.events += events
        self._unreported += events
        self._size += len(text.encode())

    def report(self, report: Report) -> None:
        """Take in what an event says."""
        if report.prompt:  # no prompt has no tokens
            self._prompt = report.prompt
        if report.cached is not None:
            self._cached = report.cached
        if report.completion is not None and (report.completion or not self.events):
            self._completion = max(report.completion, self._completion or 0)
            self._unreported = 0
        if report.reasoning is not None:
            self._reasoning = max(report.reasoning, self._reasoning or 0)

    def nothing_generated(self) -> None:
        """Note that the request generates no output, an embedding."""
        self._completion = 0

    def complete(self) -> None:
        """Note that the server has said all that it says of the usage: it tells no more of what was cached."""
        self._is_complete = True

    @property
    def is_exact(self) -> bool:
        """Whether the server itself has counted all that arrived, believably, and has no more to tell of its cache."""
        is_counted = self._prompt is not None and self._completion is not None and not self._unreported
        return is_counted and (self._cached is not None or self._is_complete) and self._is_sound

    @property
    def _is_sound(self) -> bool:
        prompt, completion = self._prompt or 0, self._completion or 0
        return (
            prompt <= self._most_prompt
            and completion <= self._most_output
            and (self._cached or 0) <= prompt
            and (self._reasoning or 0) <= completion
        )

    @property
    def completion(self) -> int:
        """Output tokens so far, those beyond what was asked for included."""
        counted = max(self.events, tokens.least_of(self._size))
        if self._completion is None:
            return counted
        return max(self._completion, counted) if self._unreported else self._completion

    @property
    def usage(self) -> Usage:
        """The usage so far, within what is paid for."""
        prompt = min(self._expected if self._prompt is None else self._prompt, self._most_prompt)
        cached = self._cached if self._cached is not None and self._cached <= prompt else 0
        completion = min(self.completion, self._most_output)
        reasoning = self._reasoning if self._reasoning is not None and self._reasoning <= completion else 0
        return Usage(input=prompt - cached, cache_read=cached, output=completion - reasoning, reasoning=reasoning)
