"""Train the adapter that makes a small chat model a specialist for tickets.

    python -m desk.training.train_fields --model FOLDER --out FOLDER --steps 2200 3000
    python -m desk.training.train_fields --model FOLDER --out FOLDER --seconds 100 --batch 64 --workers 12 --compile

Repeatable from `--seed` on one machine; run again with the same `--out` it goes on where it was. On a CPU the processes
of `--processes` share each batch and add up their gradients, so that no core waits for another within a step. The
learning rate rises for the first steps, stays, and falls to nothing before each end that `--steps` names, over a fifth
of the steps until there; whoever has less time than thought gives fewer steps when going on. With `--seconds` the only
end is that time, and the adapter what it reached; else the mean of what was reached at the ends: each errs at questions
of its own, and their mean at fewer than any (averaged weights of one training: Izmailov et al. 2018, arXiv:1803.05407).
`curve.jsonl` has a line each ten steps.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from desk.training import lora
from desk.training.conversations import Conversation, batches
from desk.training.course import Course, rate
from desk.training.generators import GENERATORS

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RISE, FALL = 20, 0.2
LOGGED = 10

Numbers = dict[str, dict[str, torch.Tensor]]  # of each pair its A and B


def weight_of(batch: Sequence[Conversation]) -> float:
    """Return what the answers' tokens of `batch` weigh in all."""
    return sum(one.weight * (len(one.ids) - one.begin) for one in batch)


def loss_of(model: Any, batch: Sequence[Conversation], device: torch.device, whole: float) -> torch.Tensor:
    """Return the loss over the answers' tokens alone, by `whole` weight; no other position reaches the vocabulary."""
    longest = max(len(one.ids) for one in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    places: list[tuple[int, int]] = []
    weights: list[float] = []
    for row, one in enumerate(batch):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        answered = range(one.begin, len(one.ids))
        places += [(row, place) for place in answered]
        weights += [one.weight] * len(answered)
    ids, where, weight = (_moved(one, device) for one in (ids, torch.tensor(places), torch.tensor(weights)))
    rows, columns = where.T
    # Causal, and padded behind: no token sees the padding, so no mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[rows, columns - 1]).float()
    each = nn.functional.cross_entropy(logits, ids[rows, columns], reduction="none")
    return (each * weight).sum() / whole


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `tensor` on `device`, without waiting until a GPU has done what it was given."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def train(options: argparse.Namespace) -> None:
    """Train in `options.processes` processes; then `options.out` has `adapter/`, `curve.jsonl` and `state.pt`."""
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.processes == 1:
        _train(0, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        given = (options, f"file://{folder}/meeting")
        multiprocessing.spawn(_join, given, nprocs=options.processes)  # type: ignore[attr-defined, no-untyped-call]


def _join(rank: int, options: argparse.Namespace, meeting: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.processes))
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.processes)
    try:
        _train(rank, options)
    finally:
        distributed.destroy_process_group()


def _add_up(parameters: Sequence[nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
    """Give each process the sum of all processes' gradients, and return the sum of their losses."""
    grads = [one.grad for one in parameters if one.grad is not None]
    flat = torch.cat([loss.detach().reshape(1), *(grad.flatten() for grad in grads)])
    distributed.all_reduce(flat)
    for grad, summed in zip(grads, torch.split(flat[1:], [grad.numel() for grad in grads]), strict=True):
        grad.copy_(summed.view_as(grad))
    return flat[0]


def _adapted(options: argparse.Namespace, device: torch.device) -> tuple[Any, dict[str, lora.LowRank]]:
    """Return the model with its pairs, which begin without effect or as `options.begin` has them."""
    # Of short rows on a CPU the fused attention's gradient takes longer than attention written out.
    attention = "sdpa" if device.type == "cuda" else "eager"
    model: Any = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16, attn_implementation=attention
    ).to(device)
    pairs = lora.adapt(model, TARGETS, options.rank, 2.0 * options.rank)
    if options.begin:
        lora.restore(Path(options.begin), pairs)
    if options.compile:  # a layer at a time: what is compiled for one serves all
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    return model, pairs


def _train(rank: int, options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() and options.processes == 1 else "cpu")
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model, pairs = _adapted(options, device)
    parameters = [one for pair in pairs.values() for one in pair.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    out = Path(options.out)
    step, seconds, ends = _resume(out, pairs, optimizer)
    course = Course(out, step, seconds, options.steps, options.seconds)
    if passed := [end for end in course.ends if end <= step and end not in ends]:
        raise SystemExit(f"--steps: {out} is at step {step} and made no end at {passed}; name ends that are to come")
    drawn = batches(
        "train",
        options.seed,
        options.batch,
        tokenizer,
        first=step,
        generators=options.generators,
        workers=options.workers,
    )
    losses: list[torch.Tensor] = []
    while (share := course.share) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = rate(course.step, share, options.rate, rise=RISE, fall=FALL)
        batch = next(drawn)
        loss = loss_of(model, batch[rank :: options.processes], device, weight_of(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(_add_up(parameters, loss) if options.processes > 1 else loss.detach())
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        course.step += 1
        if course.step in course.ends:
            ends[course.step] = _numbers(pairs)
        if rank:
            continue
        if course.step % LOGGED == 0 or course.share == 1.0:
            mean = round(float(sum(losses)) / len(losses), 4)  # a GPU is waited for here alone
            course.tell(examples=course.step * options.batch, loss=mean, rate=optimizer.param_groups[0]["lr"])
            losses = []
        if course.is_due():
            _save(course, pairs, ends, optimizer)
    if not rank:
        _save(course, pairs, ends, optimizer)
        _take_mean(pairs, [ends[end] for end in course.ends] or [_numbers(pairs)])
        lora.save(out / "adapter", pairs, base=options.name, task="CAUSAL_LM", dtype=torch.bfloat16)


def _save(
    course: Course, pairs: dict[str, lora.LowRank], ends: dict[int, Numbers], optimizer: torch.optim.Optimizer
) -> None:
    """Write what going on needs, whole or not at all."""
    state = {"step": course.step, "seconds": course.seconds, "pairs": _numbers(pairs), "ends": ends}
    torch.save({**state, "optimizer": optimizer.state_dict()}, course.out / "state.pt.new")
    (course.out / "state.pt.new").replace(course.out / "state.pt")


def _numbers(pairs: dict[str, lora.LowRank]) -> Numbers:
    """Return a copy of what is trained."""
    return {
        name: {"A": pair.lora_A.detach().clone(), "B": pair.lora_B.detach().clone()} for name, pair in pairs.items()
    }


def _give(pairs: dict[str, lora.LowRank], numbers: Numbers) -> None:
    with torch.no_grad():
        for name, pair in pairs.items():
            pair.lora_A.copy_(numbers[name]["A"])
            pair.lora_B.copy_(numbers[name]["B"])


def _take_mean(pairs: dict[str, lora.LowRank], ends: Sequence[Numbers]) -> None:
    """Give `pairs` the mean of `ends`: these lie so near that A's and B's means multiply to that of their products."""
    _give(
        pairs,
        {name: {part: torch.stack([end[name][part] for end in ends]).mean(0) for part in ("A", "B")} for name in pairs},
    )


def _resume(
    out: Path, pairs: dict[str, lora.LowRank], optimizer: torch.optim.Optimizer
) -> tuple[int, float, dict[int, Numbers]]:
    """Return the step, the seconds and the ends that were reached in `out`, and take up their state; none: 0."""
    if not (out / "state.pt").is_file():
        return 0, 0.0, {}
    state = torch.load(out / "state.pt", weights_only=True)
    _give(pairs, state["pairs"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["seconds"], state["ends"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the folder of SmolLM2-135M-Instruct")
    parser.add_argument("--name", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="what the adapter says it is for")
    parser.add_argument("--out", required=True, help="where check-points, the curve and the adapter go")
    parser.add_argument("--generators", nargs="+", choices=tuple(GENERATORS), default=list(GENERATORS))
    parser.add_argument("--steps", type=int, nargs="+", default=[1000], help="where the rate is to have fallen")
    parser.add_argument("--seconds", type=float, help="train for so long instead, on a way that ends with this time")
    parser.add_argument("--begin", help="the folder of an adapter whose numbers to begin with")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="how many share a batch, on a CPU")
    parser.add_argument("--workers", type=int, default=0, help="how many processes make the batches; 0: the training's")
    parser.add_argument("--compile", action="store_true", help="compile the layers, for a GPU")
    options = parser.parse_args()
    if options.seconds is not None and options.processes > 1:
        parser.error("--seconds: of one process alone, since each measures its own time")
    if not 1 <= options.processes <= options.batch:
        parser.error("--processes: at least 1, and at most as many as a --batch has examples")
    if options.steps != sorted(set(options.steps)):
        parser.error("--steps: each end after the one before")
    train(options)


if __name__ == "__main__":
    main()
