"""One step as plain data: the scheduler's plan and the runner's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inference.core.grammar import Grammar
from inference.labels import LabelSet
from inference.types import PositionLogprobs, SamplingParams


class Row(NamedTuple):  # a step makes one for each sequence, and a tuple is made in a third of a dataclass's time
    """One sequence's part of a step: compute `count` tokens at positions `start`, `start` + 1, ….

    The tokens are `ids`; with `follows` the first is the newest token sampled for `slot`, which the planner doesn't
    know yet, and `ids` are those after it. The last `drafts` of them are proposals. `blocks` is the sequence's whole
    block table (block i holds positions [i·size, (i+1)·size)). `samples` is set when the row reaches the sequence's
    last token: then the runner samples output token number `output_index` (from 0) with `sampling` and `seed`, and one
    more behind each draft as long as the draft before it is what was sampled in its place. `slot` is stable while the
    sequence runs and unique among running rows. `adapter` names the weights that are added to the model's ("": none).

    `history` is the sequence's own list of known tokens, prompt first, if its sampling counts them or a `grammar` says
    which may follow: the same list in all of its rows, and longer in time. `banned` are the ids that would end it, if
    it has `min_tokens`. `targets` are prompt tokens whose log-probabilities are wanted: those that follow the first
    len(targets) of `ids`.
    """

    slot: int
    request_id: str
    ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    samples: bool
    output_index: int
    sampling: SamplingParams
    seed: int
    history: Sequence[int] = ()
    banned: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    follows: bool = False
    drafts: int = 0
    adapter: str = ""
    grammar: Grammar | None = None

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many tokens the row computes."""
        return len(self.ids) + self.follows


@dataclass(frozen=True, slots=True)
class EncodeRow:
    """One whole input of an embedding request: no KV blocks, one forward, one vector.

    Of a pair that is scored the second text begins at the token `second`; 0 where the model doesn't tell them apart.
    `labels` are those to choose from: the same object in all rows of one request.
    """

    request_id: str
    index: int
    ids: tuple[int, ...]
    second: int = 0
    labels: LabelSet | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows of one step: generation rows or encode rows, never both.

    `begins` has the requests whose first forward pass this is, so that the worker can record them before it runs. Each
    request is in it once, even when its first step fails and is repeated.
    """

    number: int
    rows: tuple[Row, ...] = ()
    encodes: tuple[EncodeRow, ...] = ()
    begins: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens the step computes."""
        return sum(row.count for row in self.rows) + sum(len(row.ids) for row in self.encodes)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that failed alone (non-finite logits, a bad id): its request ends with this error, the others go on.

    `param` names the request's field that made it fail, None where none did.
    """

    code: str
    message: str
    param: str | None = None


class RowResult(NamedTuple):
    """Result of a row: `tokens`, none where the row doesn't sample.

    Behind the token after the last known one stand as many more as drafts were right. `logprobs` has one entry for each
    token of a row that asked for them, `prompt_logprobs` one for each of its `targets`.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()


NOTHING_SAMPLED = RowResult()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One entry per planned row or encode row, in order."""

    rows: tuple[RowResult | RowFailure, ...] = ()
    vectors: tuple[bytes | RowFailure, ...] = ()
