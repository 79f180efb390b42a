"""What the engine reaches on this device: steps through the runner, and a mixed workload through the whole engine."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.shapes import Sizes, StoredWeights, decoder
from inference.config import EngineConfig
from inference.core.step import Row, RowResult, StepPlan
from inference.cuda.device import Cuda, Device
from inference.cuda.runner import CudaRunner
from inference.execution.backend import LoadedModel
from inference.execution.kv_cache import KVCache
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, Kind, SamplingParams

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)


def synchronise(sizes: Sizes) -> None:
    if sizes.device.type == "cuda":
        torch.cuda.synchronize()


def timed(sizes: Sizes, work: Callable[[], object], times: int) -> float:
    """Seconds of one `work`, the mean of `times` after two that don't count."""
    for _ in range(2):
        work()
    synchronise(sizes)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronise(sizes)
    return (time.perf_counter() - began) / times


def limits(sizes: Sizes) -> tuple[float, float]:
    """Return what the device does at most: (bytes/s read, operations/s of a matrix product in the model's dtype)."""
    numbers = torch.ones(sizes.copied // sizes.dtype.itemsize, dtype=sizes.dtype, device=sizes.device)
    target = torch.empty_like(numbers)
    copied = 2 * numbers.nbytes / timed(sizes, partial(target.copy_, numbers), 10)
    del numbers, target
    side = sizes.matrix
    a, b = torch.randn(2, side, side, device=sizes.device).to(sizes.dtype).unbind()
    product = 2 * side**3 / timed(sizes, lambda: a @ b, 10)
    return copied, product


def runner(
    sizes: Sizes, quantization: str, device: Device | None, rows: int = 0, weights: StoredWeights | None = None
) -> CudaRunner:
    """Return a runner over a random model; its K/V hold every row to its full context, or a sixth where that's much."""
    model = decoder(sizes, quantization, weights)
    rows = rows or sizes.rows
    tokens = max(sizes.context, sizes.step, rows * sizes.context // 3)
    with torch.inference_mode():
        cache = KVCache(model.spec, tokens // BLOCK + 1, BLOCK, sizes.device)
    attention = model.attention(cache, max_rows=rows + 1, max_blocks=-(-sizes.context // BLOCK))
    made = CudaRunner(
        model, attention, device or Cuda(sizes.device), limit=sizes.context, max_tokens=max(sizes.step, rows)
    )
    if device is not None:
        # On a GPU the buffers of the host go to one on the device, which captured work reads; here they are that one.
        made._packer._turns = [made._packer._turns[0]] * 2
    return made


def row(slot: int, ids: tuple[int, ...], start: int, blocks: tuple[int, ...], *, index: int = 0, **more: Any) -> Row:
    return Row(slot, str(slot), ids, start, blocks, True, index, more.pop("sampling", GREEDY), slot, **more)


def decoding(
    sizes: Sizes,
    subject: CudaRunner,
    rows: int,
    length: int,
    *,
    adapters: Sequence[str] = ("",),
    sampling: SamplingParams = GREEDY,
) -> float:
    """Seconds of a step of `rows` rows whose contexts are about `length`, each launched before the last is known.

    The rows have these adapters in turns, "" for none.
    """
    per = min(-(-sizes.context // BLOCK), (subject._packer.attention.cache.blocks - 1) // rows)
    length = min(length, per * BLOCK - sizes.steps - 1)
    tables = [tuple(range(1 + slot * per, 1 + (slot + 1) * per)) for slot in range(rows)]
    keys = [adapters[slot % len(adapters)] for slot in range(rows)]
    more = [{"adapter": key, "sampling": sampling} for key in keys]
    begun = tuple(row(slot, (5,), length, tables[slot], **more[slot]) for slot in range(rows))
    first = subject.launch(StepPlan(0, begun)).wait()
    assert all(isinstance(answer, RowResult) for answer in first.rows), first.rows
    pending = None
    began = time.perf_counter()
    for step in range(sizes.steps):
        plan = StepPlan(
            step,
            tuple(
                row(s, (), length + 1 + step, tables[s], index=step + 1, follows=True, **more[s]) for s in range(rows)
            ),
        )
        launched = subject.launch(plan)
        if pending is not None:
            pending.wait()
        pending = launched
    assert pending is not None
    pending.wait()
    return (time.perf_counter() - began) / sizes.steps


def prefilling(sizes: Sizes, subject: CudaRunner) -> float:
    """Seconds of a step that fills its budget with one prompt after the other."""
    length = min(sizes.context, sizes.step // 2)
    per = -(-length // BLOCK)
    rows = [
        row(
            slot,
            tuple(random.Random(slot).choices(range(sizes.config.vocab_size), k=length)),
            0,
            tuple(range(1 + slot * per, 1 + (slot + 1) * per)),
        )
        for slot in range(sizes.step // length)
    ]
    return timed(
        sizes, lambda: subject.launch(StepPlan(0, tuple(rows))).wait(), 3 if sizes.device.type == "cuda" else 1
    )


def workload(sizes: Sizes) -> list[tuple[list[int], int]]:
    """The mixed workload: prompts of log-uniform lengths and the number of tokens that each answer has."""
    chance = random.Random(3)
    made = []
    for _ in range(sizes.requests):
        length = round(math.exp(chance.uniform(math.log(sizes.prompts[0]), math.log(sizes.prompts[1]))))
        made.append((chance.choices(range(3, sizes.config.vocab_size), k=length), chance.randint(*sizes.outputs)))
    return made


def served(
    sizes: Sizes, subject: CudaRunner, requests: Sequence[tuple[list[int], int]]
) -> tuple[list[list[int]], float]:
    """Return the greedy answers of the whole engine to `requests`, all of which come at once, and the seconds taken."""
    cache = subject._packer.attention.cache
    model = LoadedModel(
        runner=subject,
        kinds=frozenset({Kind.CHAT}),
        max_context=sizes.context,
        max_input=sizes.context - 1,
        vocab_size=sizes.config.vocab_size,
        eos_ids=frozenset(),
        kv_blocks=cache.blocks,
        block_size=BLOCK,
        vector_width=0,
        tokenizer_folder=Path(),
        details={},
    )
    config = EngineConfig(
        "bench",
        "random",
        max_rows=sizes.rows,
        max_step_tokens=sizes.step,
        prefill_chunk=sizes.step,
        prefix_cache=False,
        max_waiting=4096,
        max_waiting_per_tenant=4096,
    )
    engine = LocalEngine(config, model)
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(requests))}
    began = time.perf_counter()
    for number, (ids, most) in enumerate(requests):
        request = GenerationRequest(str(number), "t", "d", sampling=SamplingParams(temperature=0.0, max_tokens=most))
        engine.submit(Prompt(request, most, ids=tuple(ids)))
    while engine.unfinished:
        for output in engine.step():
            answers[output.request_id].extend(output.tokens)
    seconds = time.perf_counter() - began
    assert [len(answer) for answer in answers.values()] == [most for _, most in requests], "some answers are short"
    return list(answers.values()), seconds


def ours(sizes: Sizes, subject: CudaRunner) -> float:
    """Output tokens per second of the mixed workload through the whole engine."""
    answers, seconds = served(sizes, subject, workload(sizes))
    return sum(map(len, answers)) / seconds


def likely(sizes: Sizes, device: Device | None) -> tuple[int, int]:
    """How many tokens of greedy answers, in float32 and in crowds, transformers finds the likeliest too, and of all.

    A token whose logit is within a thousandth of the likeliest's counts.
    """
    from transformers import LlamaForCausalLM

    with sizes.device:
        other = LlamaForCausalLM._from_config(sizes.config, attn_implementation="eager").eval()
    subject = runner(replace(sizes, dtype=torch.float32), "", device, weights=StoredWeights(other.state_dict()))
    subject.capture()
    requests = workload(sizes)
    answers, _ = served(sizes, subject, requests)
    right = total = 0
    for (ids, _), answer in zip(requests, answers, strict=True):
        with torch.inference_mode():
            logits = other(torch.tensor([[*ids, *answer[:-1]]], device=sizes.device)).logits[0, len(ids) - 1 :].float()
        chosen = logits.gather(1, torch.tensor(answer, device=sizes.device)[:, None])[:, 0]
        right += int((chosen >= logits.amax(1) - 1e-3).sum())
        total += len(answer)
    return right, total


def peers(sizes: Sizes, seconds: float) -> tuple[float, int]:
    """The same through transformers' continuous batching: tokens per second of what is done within `seconds`, and how
    many answers that is.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaForCausalLM

    with sizes.device:
        before = torch.get_default_dtype()
        torch.set_default_dtype(sizes.dtype)
        model = LlamaForCausalLM._from_config(sizes.config, attn_implementation="sdpa").eval()
        torch.set_default_dtype(before)
    requests = workload(sizes)
    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=sizes.outputs[1])
    more = {"num_blocks": 64, "max_batch_tokens": 32} if sizes.device.type == "cpu" else {}
    batching = ContinuousBatchingConfig(allow_block_sharing=False, **more)
    done = tokens = 0
    with model.continuous_batching_context_manager(
        generation_config=settings, continuous_batching_config=batching, block=True, timeout=20
    ) as manager:
        manager.add_request(requests[0][0], request_id="warm", max_new_tokens=2)
        while (result := manager.get_result(timeout=60)) is None or not result.is_finished():
            pass
        began = time.perf_counter()
        for number, (ids, most) in enumerate(requests):
            manager.add_request(ids, request_id=str(number), max_new_tokens=most)
        taken = 0.0
        while done < len(requests) and taken < seconds:
            result = manager.get_result(timeout=1)
            taken = time.perf_counter() - began
            if result is not None and result.is_finished():
                done += 1
                tokens += len(result.generated_tokens)
        return tokens / taken, done
