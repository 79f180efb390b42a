"""The usage of one request, from what the server says and, where it doesn't, from what arrived."""

from __future__ import annotations

from dataclasses import dataclass

from inference.clients.remote import tokens
from inference.types import Usage


@dataclass(frozen=True, slots=True)
class Report:
    """Usage so far as one event reports it; None is no report, 0 is none used.

    `cached` is a part of `prompt`, `reasoning` one of `completion`.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Counter:
    """Counts one request: its prompt has at least `least_prompt` tokens, likely `prompt`, and at most `most_prompt` and
    `most_output` are paid for.

    The rule of what is believed stands in docs/remote.md. A later report never lowers an earlier one, and what one
    doesn't say leaves what another said. `findings` are what can't be; with any of them the usage is an estimate.

    Some servers count in every event but tell only with the last how much of the prompt was cached. A prompt of which
    that isn't known is counted as computed, which is the most that it can cost, and the usage is no exact one.
    """

    def __init__(self, prompt: int, most_prompt: int, most_output: int, least_prompt: int = 0) -> None:
        self._prompt: int | None = None
        self._cached: int | None = None
        self._completion: int | None = None
        self._reasoning: int | None = None
        self._is_complete = False  # the server has said all that it says
        self._expected = prompt
        self._least_prompt = least_prompt
        self._most_prompt = most_prompt
        self._most_output = most_output
        self._refused: set[str] = set()  # findings about reports that were not taken in
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
        if report.prompt is not None:
            if wrong := self._wrong_prompt(report.prompt):
                self._refused.add(wrong)
            else:
                self._prompt = report.prompt
        if report.cached is not None:
            self._cached = report.cached
        if report.completion is not None:
            self._unreported = 0
            if report.completion > self._most_output:
                self._refused.add("output_too_large")
            else:
                if report.completion < (self._completion or 0):
                    self._refused.add("output_went_back")
                self._completion = max(report.completion, self._completion or 0)
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
        return self._is_counted and (self.tells_cached or self._is_complete) and not self.findings

    @property
    def _is_counted(self) -> bool:
        return self._prompt is not None and self._completion is not None and not self._unreported

    @property
    def tells_cached(self) -> bool:
        """Whether the server has said how much of the prompt was cached."""
        return self._cached is not None

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of the faults in the server's reports: impossible counts, or none though its answer is complete."""
        prompt, said = self._prompt or 0, self._completion
        wrong = {
            "prompt_beyond_hold": prompt > self._most_prompt,
            "cached_beyond_prompt": self._prompt is not None and (self._cached or 0) > prompt,
            "output_too_small": said is not None and not self._unreported and said < self._least_output,
            "output_beyond_what_arrived": said is not None
            and said - (self._reasoning or 0) > tokens.most_of(self._size),
            "reasoning_beyond_output": said is not None and (self._reasoning or 0) > said,
            "usage_not_told": self._is_complete and not self._refused and not self._is_counted,
        }
        return tuple(sorted(self._refused | {name for name, is_so in wrong.items() if is_so}))

    @property
    def _least_output(self) -> int:
        return max(self.events, tokens.surely_of(self._size))

    def _wrong_prompt(self, prompt: int) -> str:
        """Return why a prompt can't have so many tokens, "" where it can."""
        if prompt > tokens.densest(self._most_prompt):
            return "prompt_too_large"
        return "prompt_too_small" if not prompt or 2 * prompt < self._least_prompt else ""

    @property
    def is_beyond(self) -> bool:
        """Whether more output than was asked for has come, or the server says so."""
        return self.completion > self._most_output or "output_too_large" in self._refused

    @property
    def completion(self) -> int:
        """Output tokens so far, those beyond what was asked for included."""
        counted, said = max(self.events, tokens.least_of(self._size)), self._completion
        if said is None or said < self._least_output:
            return max(counted, said or 0)
        return max(said, counted) if self._unreported else said

    @property
    def usage(self) -> Usage:
        """The usage so far, within what is paid for."""
        prompt = min(self._expected if self._prompt is None else self._prompt, self._most_prompt)
        cached = self._cached if self._cached is not None and self._cached <= prompt else 0
        completion = min(self.completion, self._most_output)
        reasoning = self._reasoning if self._reasoning is not None and self._reasoning <= completion else 0
        return Usage(input=prompt - cached, cache_read=cached, output=completion - reasoning, reasoning=reasoning)
