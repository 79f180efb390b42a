"""The outputs and the state of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.types import Finished, FinishReason, PositionLogprobs, Started, Told, Usage, Vector, Work


@dataclass(slots=True)
class Output:
    """Output of one step for one request, to be sent in this order: started, tokens or vectors, finished.

    `tokens` are those with text: the end-of-sequence token or stop id that ended the request is counted in `usage` but
    isn't among them. A request that ends before its first step is committed has no `started`. `logprobs` has an entry
    for each of `tokens`, `prompt_logprobs` for the next ones of the prompt, if they were asked for.
    `text`, the texts in the log-probabilities and, after a stop string, `finished` are set by the engine, which has the
    tokenizer; an answer that is parsed is `told` instead of `text`, and the log-probabilities of its tokens that are no
    text (of thought and calls) are `unspoken`, which is never sent. So are, for requests with several answers, `index`,
    `ended` and `stop` (as in `inference.types.Delta`), and `reports_usage`, which sends the usage alone.
    """

    request_id: str
    usage: Usage
    started: Started | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    finished: Finished | None = None
    vectors: tuple[Vector, ...] = ()
    text: str = ""
    index: int = 0
    ended: FinishReason | None = None
    stop: str | int | None = None
    reports_usage: bool = False
    told: tuple[Told, ...] = ()
    unspoken: tuple[PositionLogprobs, ...] = ()

    @property
    def has_delta(self) -> bool:
        """Whether there is anything to be sent between `started` and `finished`."""
        return bool(
            self.text
            or self.told
            or self.tokens
            or self.logprobs
            or self.prompt_logprobs
            or self.ended
            or self.reports_usage
        )


@dataclass(frozen=True, slots=True)
class Stats:
    """A scheduler's state now; `steps`, `preemptions` and `work` count from its start.

    `running` counts sequences with a slot (paused ones included), `paused` those at their allowance, with a slot or
    not. `kv_used` is the part of the pool that sequences hold, `kv_cached` the part that has only cached prefixes.
    """

    running: int = 0
    paused: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    kv_cached: float = 0.0
    steps: int = 0
    preemptions: int = 0
    work: Work = field(default_factory=Work)
