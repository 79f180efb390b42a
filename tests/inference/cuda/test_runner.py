"""The CUDA runner on a stand-in device: the same tokens as the CPU's, in graphs or without, and its failures told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from inference.architectures.decoder import Decoder
from inference.architectures.weights import FolderWeights
from inference.core.step import Row, RowFailure, RowResult, StepPlan
from inference.cuda.attention import TritonAttention
from inference.cuda.graphs import buckets, doublings
from inference.cuda.operators import TritonOperators
from inference.cuda.runner import CudaRunner
from inference.errors import DeviceLostError
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.kv_cache import KVCache
from inference.execution.operators import Operators, TorchOperators
from inference.execution.runner import TorchRunner
from inference.types import SamplingParams
from tests.inference.adapting import save_adapter
from tests.inference.cuda.host import HostDevice
from tests.inference.sampling.test_guides import Listed
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, top_k=40)
ROWS, BLOCKS, SIZE = 5, 40, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("qwen3", tmp_path_factory.mktemp("qwen3"), num_hidden_layers=1)


def model(folder: Path, operators: Operators | None = None) -> Decoder:
    with torch.inference_mode(), FolderWeights(folder) as weights:
        return Decoder(AutoConfig.from_pretrained(folder), weights, torch.float32, operators or TorchOperators())


def cuda(folder: Path, device: HostDevice | None = None, operators: Operators | None = None) -> CudaRunner:
    decoder = model(folder, operators)
    attention = TritonAttention(KVCache(decoder.spec, BLOCKS, SIZE), max_rows=ROWS + 1, max_blocks=8)
    runner = CudaRunner(decoder, attention, device or HostDevice(), limit=100, max_tokens=64)
    # On a GPU both of the host's buffers go to one on the device, which captured work reads; here they are that one.
    runner._packer._turns = [runner._packer._turns[0]] * 2
    return runner


def host(folder: Path) -> TorchRunner:
    decoder = model(folder)
    attention = ReferenceAttention(KVCache(decoder.spec, BLOCKS, SIZE), max_rows=ROWS, max_blocks=8)
    return TorchRunner(causal=(decoder, attention), limit=100, max_tokens=64, overlaps=True)


def row(slot: int, ids, start: int, sampling=GREEDY, *, index: int = 0, **more) -> Row:
    blocks = BLOCK_TABLES[slot]
    return Row(slot, str(slot), tuple(ids), start, blocks, True, index, sampling, slot, **more)


BLOCK_TABLES = {slot: tuple(range(1 + 7 * slot, 8 + 7 * slot)) for slot in range(ROWS)}
PROMPTS = {0: (5, 6, 7), 1: tuple(range(3, 23)), 2: (9,), 3: (4, 4, 4, 8)}


def given(pending) -> tuple:
    """What each row gave: its token, None or its failure."""
    answers = pending.wait().rows
    return tuple(one if isinstance(one, RowFailure) else next(iter(one.tokens), None) for one in answers)


def run(runner, *rows: Row):
    return given(runner.launch(StepPlan(0, rows)))


def answers(runner, sampling: SamplingParams, steps: int = 4) -> list[tuple]:
    tokens = [run(runner, *(row(slot, ids, 0, sampling) for slot, ids in PROMPTS.items()))]
    for step in range(1, steps):
        tokens.append(
            run(
                runner,
                *(
                    row(slot, (tokens[-1][slot],), len(ids) + step - 1, sampling, index=step)
                    for slot, ids in PROMPTS.items()
                ),
            )
        )
    return tokens


def test_the_tokens_are_the_cpus_in_graphs_and_without(folder) -> None:
    expected = answers(host(folder), DRAWN)
    device = HostDevice()
    captured = cuda(folder, device)
    captured.capture()
    assert captured.graphs.failure == ""
    assert device.captured == len(buckets(ROWS))
    assert answers(captured, DRAWN) == expected
    assert device.replays == 3
    assert answers(cuda(folder), DRAWN) == expected


def test_a_step_is_launched_before_the_last_ones_tokens_are_known(folder) -> None:
    runner = cuda(folder)
    runner.capture()
    expected = answers(host(folder), GREEDY, steps=3)
    first = runner.launch(StepPlan(0, tuple(row(slot, ids, 0) for slot, ids in PROMPTS.items())))
    followers = [
        runner.launch(
            StepPlan(step, tuple(row(slot, (), len(ids) + step - 1, follows=True) for slot, ids in PROMPTS.items()))
        )
        for step in (1, 2)
    ]
    assert [given(first), *(given(step) for step in followers)] == expected


def test_rows_that_pad_a_graph_leave_the_null_block_empty(folder) -> None:
    runner = cuda(folder)
    runner.capture()
    answers(runner, GREEDY)
    for layer in runner._packer.attention.cache.layers:
        assert not layer.keys[0].any()
        assert not layer.values[0].any()


def test_bad_rows_fail_alone(folder) -> None:
    runner = cuda(folder)
    good = run(runner, row(0, (5, 6, 7), 0))
    tokens = run(runner, row(1, (211,), 0), row(0, (5, 6, 7), 0), row(2, (1,), 100))
    assert tokens[1] == good[0]
    assert [fault.code for fault in (tokens[0], tokens[2]) if isinstance(fault, RowFailure)] == [
        "bad_token_id",
        "too_long",
    ]


def test_a_row_without_finite_logits_fails_alone(folder) -> None:
    runner = cuda(folder)
    with torch.inference_mode():
        runner._model.embedding[77] = float("nan")
    first, second = run(runner, row(0, (77,), 0), row(1, (5,), 0))
    assert isinstance(first, RowFailure)
    assert first.code == "non_finite_logits"
    assert isinstance(second, int)


def test_what_the_kernel_cannot_choose_goes_the_general_way(folder) -> None:
    forced = SamplingParams(temperature=0.0, allowed_token_ids=(17,))
    assert run(cuda(folder), row(0, (5,), 0, forced), row(1, (6,), 0))[0] == 17


def test_guided_rows_follow_their_grammar_while_steps_overlap(folder) -> None:
    """The next step is launched before anybody reads this one's token, which its mask depends on."""
    places = ([17, 30], [18, 40], [19], [20, 50])
    runner, history = cuda(folder), [5]
    guided = row(0, (5,), 0, GREEDY)._replace(history=history, grammar=Listed(*places))
    first = runner.launch(StepPlan(0, (guided, row(1, (6,), 0, GREEDY))))
    launched = [first]
    for number in range(1, 4):
        follower = row(0, (), number, GREEDY, index=number, follows=True)._replace(
            history=history, grammar=guided.grammar
        )
        plain = row(1, (), number, GREEDY, index=number, follows=True)
        launched.append(runner.launch(StepPlan(number, (follower, plain))))
    chosen = [step.wait().rows for step in launched]
    assert all(held.tokens[0] in permitted for (held, _), permitted in zip(chosen, places, strict=True))
    alone = cuda(folder)
    steps = [alone.launch(StepPlan(0, (row(1, (6,), 0, GREEDY),)))]
    for number in range(1, 4):
        follower = row(1, (), number, GREEDY, index=number, follows=True)
        steps.append(alone.launch(StepPlan(number, (follower,))))
    assert [plain.tokens for _, plain in chosen] == [step.wait().rows[0].tokens for step in steps]


def test_drafts_and_log_probabilities_are_those_of_the_cpu(folder) -> None:
    told = SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=1)
    prompt = (5, 6, 7)
    for runner in (host(folder), cuda(folder)):
        (first,) = runner.launch(StepPlan(0, (row(0, prompt, 0, told, targets=(6, 7)),))).wait().rows
        assert isinstance(first, RowResult)
        assert [entry.chosen.token for entry in first.prompt_logprobs] == [6, 7]
        (token,) = first.tokens
        tokens = [token, *(answers(host(folder), GREEDY, steps=3)[i][0] for i in (1, 2))]
        drafted = row(0, (*tokens[:2], (tokens[2] + 1) % 211), 3, told, index=1, drafts=2)
        (second,) = runner.launch(StepPlan(1, (drafted,))).wait().rows
        assert isinstance(second, RowResult)
        assert second.tokens[:2] == tuple(tokens[1:])
        assert len(second.tokens) == len(second.logprobs) == 2
        followed = run(runner, row(0, (), 5, index=3, follows=True))
        assert followed == (answers(host(folder), GREEDY, steps=4)[3][0],)


def test_without_graphs_steps_run_and_the_reason_is_known(folder) -> None:
    runner = cuda(folder, HostDevice(fails=RuntimeError("operation not permitted when stream is capturing\nmore")))
    runner.capture()
    assert runner.graphs.failure == "operation not permitted when stream is capturing"
    assert answers(runner, GREEDY) == answers(host(folder), GREEDY)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLostError),
        (RuntimeError("shapes differ"), RuntimeError),
    ],
    ids=["memory", "lost", "other"],
)
def test_what_the_device_raises_is_told(folder, raised, told, monkeypatch) -> None:
    device = HostDevice()
    runner = cuda(folder, device)

    def broken(batch) -> None:
        raise raised

    monkeypatch.setattr(runner._model, "forward", broken)
    pending = runner.launch(StepPlan(0, (row(0, (5,), 0),)))
    for _ in range(2):
        with pytest.raises(told):
            pending.wait()
    assert device.released == (told is MemoryError)


def test_the_triton_operators_give_the_same_tokens(folder) -> None:
    expected = answers(host(folder), GREEDY, steps=2)
    assert answers(cuda(folder, operators=TritonOperators(CPU)), GREEDY, steps=2) == expected


def adapted(runner, offered: dict[str, Path], steps: int = 4) -> list[tuple]:
    """What PROMPTS get with two adapters and none side by side."""
    adapters = runner._checks._adapters
    adapters.offer(offered)
    keys = {0: adapters.load("two"), 1: "", 2: adapters.load("one"), 3: adapters.load("two")}
    tokens = [run(runner, *(row(slot, ids, 0, adapter=keys[slot]) for slot, ids in PROMPTS.items()))]
    for step in range(1, steps):
        rows = [
            row(slot, (tokens[-1][slot],), len(ids) + step - 1, index=step, adapter=keys[slot])
            for slot, ids in PROMPTS.items()
        ]
        tokens.append(run(runner, *rows))
    return tokens


def test_adapters_by_the_triton_kernels_give_the_tokens_of_the_cpu(folder, tmp_path) -> None:
    ranks = {"one": 3, "two": 17}
    offered = {name: save_adapter(folder, tmp_path / name, rank=rank, seed=rank) for name, rank in ranks.items()}
    expected = adapted(host(folder), offered)
    assert adapted(cuda(folder, operators=TritonOperators(CPU)), offered, steps=2) == expected[:2]
    device = HostDevice()
    captured = cuda(folder, device, TritonOperators(CPU))
    captured.capture()
    assert not captured.graphs.failure
    assert device.captured == len(buckets(ROWS)) + len(doublings(ROWS))
    assert adapted(captured, offered) == expected
    assert device.replays == 3  # all but the prompts'
    plain = answers(host(folder), GREEDY)
    same = [[one == other for one, other in zip(*step, strict=True)] for step in zip(expected, plain, strict=True)]
    assert all(slots[1] for slots in same)
    assert not any(all(slot) for slot in list(zip(*same, strict=True))[2:])


def test_steps_with_adapters_that_cannot_be_captured_leave_the_others_their_graphs(folder, tmp_path) -> None:
    class Failing(HostDevice):
        def capture(self, work):
            if self.captured == len(buckets(ROWS)):
                raise RuntimeError("not this one")
            return super().capture(work)

    offered = {name: save_adapter(folder, tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))}
    device = Failing()
    runner = cuda(folder, device, TritonOperators(CPU))
    runner.capture()
    assert not runner.graphs.failure
    assert adapted(runner, offered, steps=2) == adapted(host(folder), offered, steps=2)
    assert device.replays == 0
    assert answers(runner, GREEDY, steps=2) == answers(host(folder), GREEDY, steps=2)
    assert device.replays == 1


@pytest.mark.parametrize("kind", first(["qwen2_moe", "gemma2", "phi3", "olmo2"]))
def test_each_form_of_a_layer_by_the_triton_operators_in_graphs(tmp_path, kind) -> None:
    folder = save_tiny(kind, tmp_path, num_hidden_layers=1, **({"decoder_sparse_step": 1} if "moe" in kind else {}))
    expected = answers(host(folder), GREEDY, steps=2)
    runner = cuda(folder, operators=TritonOperators(CPU))
    runner.capture()
    assert not runner.graphs.failure
    assert answers(runner, GREEDY, steps=2) == expected


@pytest.mark.parametrize("quantization", ["w8a8", "fp8", "int4"])
def test_quantised_linears_stay_near_the_plain_ones(folder, quantization) -> None:
    networks = (model(folder, TritonOperators(CPU, name)).layers[0].feed_forward for name in ("", quantization))
    plain, other = (network._gate_up for network in networks)
    for rows in (1, 70):
        x, residual = torch.randn(rows, 64), torch.randn(rows, 192)
        error = (other(x, residual) - plain(x, residual)).norm() / plain(x).norm()
        assert error < {"w8a8": 0.03, "fp8": 0.08, "int4": 0.2}[quantization]


def test_doublings_end_with_the_most() -> None:
    assert [doublings(most) for most in (0, 1, 2, 5, 8)] == [[], [1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_buckets_end_with_the_most_and_grow_slowly() -> None:
    assert buckets(1) == [1]
    assert buckets(5) == [1, 2, 4, 5]
    assert buckets(33) == [1, 2, 4, 8, 16, 24, 32, 33]
    assert all(after <= 2 * before for before, after in zip(buckets(512), buckets(512)[1:], strict=False))
