"""The interfaces of a loaded model. Imports no torch, since the fake model and the worker's loop use it without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from inference.config import ON_CPU, StepSizes
from inference.core.step import StepPlan, StepResult
from inference.execution.adapters import Adapters
from inference.labels import Labels, LabelSet
from inference.types import Kind

if TYPE_CHECKING:
    import torch

    from inference.execution.attention.base import Attention
    from inference.execution.inputs import StepBatch
    from inference.execution.kv_cache import KVCache, KVSpec
    from inference.execution.low_rank import LowRank


class Pending(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Block until the step is done and return its result; raise what the step raised. May be called again."""
        ...


class Runner(Protocol):
    """Runs planned steps on one model, one at a time and in order. Not thread-safe.

    With `overlaps`, `launch` returns before the step is done, and the next one may be launched meanwhile.
    """

    overlaps: bool

    def launch(self, plan: StepPlan) -> Pending:
        """Begin the step. Errors of the model are raised by `Pending.wait`."""
        ...


class CausalBackend(Protocol):
    """A causal language model over paged K/V."""

    spec: KVSpec
    vocab_size: int
    device: torch.device
    adapters: Adapters | None  # None: rows can't have any
    low_rank: LowRank | None  # and what multiplies with them

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        """Return the attention over `cache` that suits the model, for steps of these sizes (`Attention`)."""
        ...

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Compute the batch's tokens, store their K/V, and return hidden states [sampled tokens, width].

        Row i of the result belongs to the token at packed index `batch.sampled[i]`.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, vocabulary] of n ≥ 1 rows of what `forward` returned."""
        ...


class EncoderBackend(Protocol):
    """A model that turns each whole input into one vector, or each pair of texts into a score, a vector of one."""

    width: int
    vocab_size: int

    def encode(self, inputs: list[tuple[int, ...]], seconds: Sequence[int] = ()) -> torch.Tensor:
        """Return float32 [inputs, width]: one embedding per input, in order, as the model pools it.

        `seconds` says where the second text of each pair begins (`EncodeRow.second`).
        """
        ...


class ClassifierBackend(Protocol):
    """A model that says how probable each of some labels is."""

    labels: Labels
    vocab_size: int

    def classify(self, inputs: list[tuple[int, ...]], labels: Sequence[LabelSet]) -> list[torch.Tensor]:
        """Return the probabilities of each input's labels, float32 on the CPU, and behind them of none of them, if the
        model knows such a thing.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to serve.

    `kv_blocks` counts the null block 0 too; it is 0 for encoders. `max_context` bounds prompt + output in tokens,
    `max_input` one prompt or one embedding input, special tokens included. `eos_ids` end a generation.
    `tokenizer_folder` holds tokenizer and chat template in transformers' layout. `details` are texts for operators.
    `adapters` are those that requests may name, None where the model takes none, and `labels` a classifier's. `sizes`
    are what its steps have where the deployment doesn't say.
    """

    runner: Runner
    kinds: frozenset[Kind]
    max_context: int
    max_input: int
    vocab_size: int
    eos_ids: frozenset[int]
    kv_blocks: int
    block_size: int
    vector_width: int
    tokenizer_folder: Path
    nests_vectors: bool = False  # see `EngineInfo`
    details: Mapping[str, str] = field(default_factory=dict)
    adapters: Adapters | None = None
    adapter_bytes: int = 0
    labels: Labels | None = None
    sizes: StepSizes = ON_CPU
