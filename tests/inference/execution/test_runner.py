"""The runner: a bad row fails alone, a model's exception fails the step, nothing of one row reaches another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.step import EncodeRow, Row, RowFailure, RowResult, StepPlan
from inference.execution.backend import LoadedModel
from inference.execution.linear import PackedLinear, TorchLinear, packs
from inference.execution.processor import compute_dtype
from inference.types import Kind, SamplingParams
from tests.inference.tiny import save_tiny

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def loaded(folder: Path) -> LoadedModel:
    return load_model(EngineConfig("test", str(folder), kv_tokens=256, max_context=128), threads=1)


def row(number: int, ids: tuple[int, ...], blocks: tuple[int, ...], start: int = 0, samples: bool = True) -> Row:
    return Row(number, str(number), ids, start, blocks, samples, 0, GREEDY, 0)


def results(loaded: LoadedModel, *rows: Row) -> tuple[RowResult | RowFailure, ...]:
    return loaded.runner.launch(StepPlan(0, rows)).wait().rows


def step(loaded: LoadedModel, *rows: Row) -> tuple[int | RowFailure | None, ...]:
    """What each row gave: its token, None or its failure."""
    answers = results(loaded, *rows)
    return tuple(one if isinstance(one, RowFailure) else next(iter(one.tokens), None) for one in answers)


def test_the_loaded_model_describes_itself(loaded: LoadedModel, folder: Path) -> None:
    assert loaded.kinds == {Kind.CHAT}
    assert (loaded.max_context, loaded.max_input, loaded.vocab_size) == (128, 127, 211)
    assert (loaded.kv_blocks, loaded.block_size, loaded.vector_width) == (17, 16, 0)
    assert loaded.tokenizer_folder == folder
    assert loaded.eos_ids == frozenset()
    assert loaded.details["dtype"] == "float32 (the checkpoint's)"


def test_bad_rows_fail_alone(loaded: LoadedModel) -> None:
    good = row(0, (5, 6, 7), (1,))
    expected = step(loaded, good)
    result = step(
        loaded,
        row(1, (5, 211), (2,)),
        row(2, (5, -1), (2,)),
        good,
        row(3, (5, 6), (2,), start=15),
        row(4, (5,), (17,)),
        row(5, (5,), (0,)),
        row(6, (5,), tuple(range(2, 17)), start=128),
        row(7, (), (2,)),
        row(8, (5, 6), (3,), samples=False),
        Row(9, "9", (5,), 0, (2,), True, 0, GREEDY, 0, adapter="law"),
    )
    codes = [entry.code if isinstance(entry, RowFailure) else entry for entry in result]
    assert codes == [
        "bad_token_id", "bad_token_id", expected[0], "bad_row", "bad_row", "bad_row", "too_long", "bad_row", None,
        "unknown_adapter",
    ]  # fmt: skip


def decoded(loaded: LoadedModel, block: int, count: int, sampling: SamplingParams) -> list[int]:
    """The tokens behind (5, 6, 7), one step each."""
    tokens: list[int] = []
    for start, ids in enumerate(((5, 6, 7), *[()] * (count - 1)), start=2):
        begin = 0 if ids else start
        one = Row(9, "r", ids or (tokens[-1],), begin, (block,), True, len(tokens), sampling, 3)
        (answer,) = results(loaded, one)
        assert isinstance(answer, RowResult)
        tokens += answer.tokens
    return tokens


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, top_k=50, logprobs=2)])
def test_drafts_are_accepted_while_they_are_what_is_sampled(loaded: LoadedModel, sampling: SamplingParams) -> None:
    said = decoded(loaded, 1, 6, sampling)
    wrong = (said[3] + 1) % 211
    for drafts, accepted in (((), 0), (said[1:5], 4), ((*said[1:3], wrong, said[4]), 2), ((wrong,), 0)):
        decoded(loaded, 2, 1, sampling)
        other = row(1, (9, 8), (3,))
        drafted = Row(4, "r", (said[0], *drafts), 3, (2,), True, 1, sampling, 3, drafts=len(drafts))
        beside, answer = results(loaded, other, drafted)
        assert isinstance(answer, RowResult)
        assert list(answer.tokens) == said[1 : 2 + accepted]
        assert [one.chosen.token for one in answer.logprobs] == (list(answer.tokens) if sampling.logprobs else [])
        assert (beside,) == results(loaded, row(1, (9, 8), (3,)))
        if accepted < 4:  # the K/V of wrong drafts are overwritten
            again = Row(4, "r", (said[1 + accepted],), 4 + accepted, (2,), True, 2 + accepted, sampling, 3)
            answer = results(loaded, again)[0]
            assert isinstance(answer, RowResult)
            assert answer.tokens == (said[2 + accepted],)


def test_rows_follow_the_tokens_of_the_step_before(folder: Path) -> None:
    config = EngineConfig("test", str(folder), kv_tokens=256, max_context=128, options={"overlap": True})
    loaded = load_model(config, threads=1)
    assert loaded.runner.overlaps
    said = decoded(loaded, 1, 4, GREEDY)
    launch = loaded.runner.launch
    pending = [launch(StepPlan(0, (Row(0, "a", (5, 6, 7), 0, (2,), True, 0, GREEDY, 0), row(1, (9,), (3,)))))]
    for index in range(1, 4):
        following = Row(0, "a", (), 2 + index, (2,), True, index, GREEDY, 0, follows=True)
        other = Row(1, "1", (), index, (3,), True, index, GREEDY, 0, follows=True)
        pending.append(launch(StepPlan(index, (other, following) if index % 2 else (following, other))))
    answers = [each.wait().rows for each in pending]
    assert [answers[i][1 if i % 2 else 0].tokens[0] for i in range(4)] == said
    assert pending[0].wait() == pending[0].wait()


def test_only_bad_rows(loaded: LoadedModel) -> None:
    assert [type(entry) for entry in step(loaded, row(0, (999,), (1,)))] == [RowFailure]


def test_a_row_that_is_not_finite_harms_no_other(loaded: LoadedModel) -> None:
    prompt, other = (5, 6, 7), (9, 8, 7, 6)
    expected = step(loaded, row(0, prompt, (1,)))
    model = loaded.runner._causal
    with torch.inference_mode():
        model.embedding = model.embedding.clone()
        model.embedding[8] = float("nan")
    together = step(loaded, row(0, prompt, (2,)), row(1, other, (3,)))
    assert together[0] == expected[0]
    assert isinstance(together[1], RowFailure)
    assert together[1].code == "non_finite_logits"
    # What it left in its block is never read by the block's next owner.
    assert step(loaded, row(2, prompt, (3,))) == expected
    assert step(loaded, row(2, (expected[0],), (3,), start=3)) == step(loaded, row(0, (expected[0],), (1,), start=3))


def test_what_the_model_raises_fails_the_step_and_no_later_one(loaded: LoadedModel) -> None:
    expected = step(loaded, row(0, (5, 6), (1,)))
    model = loaded.runner._causal
    head, model.head = model.head, TorchLinear(torch.zeros(3, 3))
    pending = loaded.runner.launch(StepPlan(0, (row(0, (5, 6), (1,)),)))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            pending.wait()
    model.head = head
    assert step(loaded, row(0, (5, 6), (1,))) == expected


def test_the_null_block_stays_empty(loaded: LoadedModel) -> None:
    step(loaded, row(0, (5, 6, 7), (1,)), row(1, (5,), (2,)))
    step(loaded, row(0, (5,), (1,), start=3), row(1, (5,), (2,), start=1))
    cache = loaded.runner._packer.attention.cache
    assert not any(layer.keys[0].any() or layer.values[0].any() for layer in cache.layers)


def test_embeddings_asked_of_a_chat_model_fail_the_step(loaded: LoadedModel) -> None:
    with pytest.raises(TypeError, match="makes tokens"):
        loaded.runner.launch(StepPlan(0, encodes=(EncodeRow("a", 0, (1, 2)),))).wait()


def test_every_end_of_sequence_id_counts(tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path, eos_token_id=2)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load_model(EngineConfig("test", str(folder), kv_tokens=64)).eos_ids == {2, 7}


def test_the_number_format_follows_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, stored, wanted, dtype in (
        (False, torch.bfloat16, "auto", torch.float32),
        (True, torch.bfloat16, "auto", torch.bfloat16),
        (True, torch.float16, "auto", torch.float32),
        (True, torch.float32, "auto", torch.float32),
        (False, torch.float32, "bfloat16", torch.bfloat16),
    ):
        monkeypatch.setattr("inference.execution.processor.fast_bfloat16", lambda fast=fast: fast)
        assert compute_dtype(wanted, stored)[0] is dtype


@pytest.mark.parametrize("architecture", ["decoder", "transformers"])
def test_bfloat16_runs(folder: Path, architecture: str) -> None:
    config = EngineConfig("test", str(folder), dtype="bfloat16", kv_tokens=64, architecture=architecture)
    loaded = load_model(config)
    assert all(isinstance(token, int) for token in step(loaded, row(0, (5, 6, 7), (1,)), row(1, (9,), (2,))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_linear_is_the_plain_one(dtype: torch.dtype, bias: bool) -> None:
    if not packs(dtype):
        pytest.skip(f"no packed linears in {dtype} here")
    torch.manual_seed(1)
    weight, offset = torch.randn(48, 33, dtype=dtype), torch.randn(48, dtype=dtype) if bias else None
    for rows in (1, 2, 7, 40):
        x = torch.randn(rows, 33, dtype=dtype)
        expected = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
        linear, residual = PackedLinear(weight, offset), torch.randn(rows, 48, dtype=dtype)
        for got, wanted in ((linear(x), expected), (linear(x, residual), expected + residual)):
            torch.testing.assert_close(got.double(), wanted, atol=1e-4 if dtype is torch.float32 else 0.3, rtol=0.02)


@pytest.mark.parametrize(
    "raised",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: …"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_every_way_to_lack_memory_is_a_memory_error(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def forward(*_: object) -> None:
        raise raised

    monkeypatch.setattr(loaded.runner._causal, "forward", forward)
    with pytest.raises(MemoryError) as caught:
        loaded.runner.launch(StepPlan(0, (row(0, (5, 6), (1,)),))).wait()
    assert len(caught.traceback) < 4, "the step's own frames keep its tensors"


def test_the_message_of_torchs_allocator_is_recognised() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(1 << 46)
