"""An engine's events of a request as they cross the engine seam, with the usage so far, and evidence."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from inference.values import value


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end-of-sequence token, stop string or stop id
    LENGTH = "length"  # max_tokens or the model's context
    ALLOWANCE = "allowance"  # the output tokens that the hold bought are used up and no more will come
    CANCELLED = "cancelled"  # cancel(), the end of its gateway's session, or a drain's deadline
    ERROR = "error"  # this row failed, or its worker was lost; `Finished.error` says which


WORST_FIRST = (
    FinishReason.ERROR,
    FinishReason.CANCELLED,
    FinishReason.ALLOWANCE,
    FinishReason.LENGTH,
    FinishReason.STOP,
)
"""Of several answers' reasons the first of these is their request's."""


@value
class Usage:
    """Numbers of tokens by disjoint class; 0 means none, never unknown.

    ``input`` was computed, ``cache_read`` came from the prefix cache (their sum is the prompt); ``output`` and
    ``reasoning`` were generated (their sum is the completion, the token that completed a stop string included).
    """

    input: int = 0
    cache_read: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> int:
        """Prompt tokens, cached or computed."""
        return self.input + self.cache_read

    @property
    def completion(self) -> int:
        """Generated tokens."""
        return self.output + self.reasoning

    def classes(self) -> dict[str, int]:
        """Return the counts by class name, without those that are 0."""
        counts = {
            "input": self.input,
            "cache_read": self.cache_read,
            "output": self.output,
            "reasoning": self.reasoning,
        }
        return {name: count for name, count in counts.items() if count}


class TokenLogprob(NamedTuple):
    """A token, its natural log-probability under the model's own distribution, and its text alone.

    The text may be U+FFFD, where a character has several tokens.
    """

    token: int
    logprob: float
    text: str = ""


class PositionLogprobs(NamedTuple):
    """The token that stands at one position, its rank there (1: the most probable), and the `top` most probable ones.

    The distribution is that of the model's raw logits: before bias, masks, penalties, temperature and filters.
    """

    chosen: TokenLogprob
    rank: int
    top: tuple[TokenLogprob, ...] = ()


@value
class Started:
    """The request was admitted: `cached_tokens` of its prompt come from the prefix cache (fixed from here on).

    `seed` is the one that its noise is drawn with, None where the engine doesn't say.
    """

    cached_tokens: int
    seed: int | None = None


class CallPiece(NamedTuple):
    """A piece of call number `index` of an answer: its first has `id` and `name`, all have more of its `arguments`.

    Pieces of several calls may come in turn.
    """

    id: str = ""
    name: str = ""
    arguments: str = ""
    index: int = 0  # type: ignore[assignment]  # it hides the method of tuples, which nobody calls


class Told(NamedTuple):
    """A piece of an answer that is one of these: text, reasoning, or pieces of calls."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


@value
class Delta:
    """New text, and the usage so far.

    The text may be empty: an incomplete character, or text that may become a stop string, is held back. `tokens` are
    the new tokens, none where the engine doesn't say: then a request can't go on elsewhere (`Resumed`).

    Of several answers (`n`) this is the one with number `index`; `ended` is set in each one's last, with the `stop`
    string or id that ended it. If they were asked for, `logprobs` has one entry for each new token of the text, and
    `prompt_logprobs` one for each of the prompt's next tokens, from the second on.

    `reasoning` is what the model thought before the text, and `calls` are pieces of the function calls behind it, where
    the engine tells them apart from it.
    """

    text: str
    usage: Usage
    tokens: tuple[int, ...] = ()
    index: int = 0
    ended: FinishReason | None = None
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    stop: str | int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is text of the only answer and nothing else."""
        return not (self.logprobs or self.prompt_logprobs or self.index or self.ended or self.reasoning or self.calls)

    @property
    def is_thought(self) -> bool:
        """Whether it is reasoning of the only answer and nothing else."""
        return bool(self.reasoning) and not (
            self.text or self.logprobs or self.prompt_logprobs or self.index or self.ended or self.calls
        )


@value
class Vector:
    """The embedding of input number `index`, its score alone, or how probable `labels` are: little-endian float32."""

    index: int
    data: bytes
    labels: tuple[str, ...] = ()


@value
class EngineFault:
    """An error that ended a request: a stable `code`, a sentence for the client, and whether trying again may help.

    `param` names the request's field that no engine can go on with; None where the request is not to blame.
    """

    code: str
    message: str
    retryable: bool = False
    param: str | None = None


@value
class Finished:
    """The one last event of a request, with its final usage.

    `stop` is the stop string or id that ended it, None of several answers, each of which told its own. `exact` is
    False when the worker was lost and `usage` is only the last one it reported. With `is_estimate` that usage, too,
    is only counted from what arrived, since a foreign engine hadn't said it, or not all of it, or what can't be.
    `findings` are what a foreign engine said or did that can't be right, as metrics name it. `queued_ms`,
    `prefill_ms` and `decode_ms` are the worker's own times: until its first forward pass, from there to the first
    token of any of its answers, from there to the end of the last. Of the waits from one token of an answer to its
    next, half were at most `gap_ms`, and all but one in a hundred `gap_p99_ms`.
    """

    reason: FinishReason
    usage: Usage
    error: EngineFault | None = None
    stop: str | int | None = None
    exact: bool = True
    is_estimate: bool = False
    queued_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    gap_ms: float = 0.0
    gap_p99_ms: float = 0.0
    findings: tuple[str, ...] = ()


ANSWER_NOT_GUIDED = "answer_not_guided"
"""The finding that a whole answer isn't what it was to be held to."""

Event = Started | Delta | Vector | Finished


@value
class Running:
    """Evidence: the request is waiting or running."""

    usage: Usage


@value
class NothingRan:
    """Evidence: no forward pass was begun for the request, and none ever will be (a later Submit is refused)."""


@value
class Lost:
    """Evidence: the request was begun, and its worker ended before it finished."""


Evidence = Finished | Running | NothingRan | Lost
