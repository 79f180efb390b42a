"""One step of the engine as plain data: what the scheduler plans and what the runner answers."""

from __future__ import annotations

from dataclasses import dataclass

from inference.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of a step: compute the tokens `ids` at positions `start`, `start` + 1, ….

    `blocks` is the sequence's whole block table (block i holds positions [i·size, (i+1)·size)). `samples` is set when
    the row reaches the sequence's last known token, so that the runner chooses token number `output_index` (0 = first
    generated) with `sampling` and `seed`. `slot` is stable while the sequence runs and unique among running rows.
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


@dataclass(frozen=True, slots=True)
class EncodeRow:
    """One whole input of an embedding request: no KV blocks, one forward, one vector."""

    request_id: str
    index: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to run now: generation rows, or encode rows (never both: they are different models).

    `begins` names the requests whose first forward this step is, so that the worker can record them before it runs.
    A request is named once, even when its first step fails and is tried again.
    """

    number: int
    rows: tuple[Row, ...] = ()
    encodes: tuple[EncodeRow, ...] = ()
    begins: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows) + sum(len(row.ids) for row in self.encodes)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that failed alone (non-finite logits, a bad id): its request ends with this error, the others go on."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """One entry per planned row, in order: the sampled token, None where the row doesn't sample, or its failure."""

    tokens: tuple[int | RowFailure | None, ...] = ()
    vectors: tuple[bytes | RowFailure, ...] = ()
