"""Train the adapter that makes a small chat model a specialist for tickets.

    python -m desk.training.train_fields --model FOLDER --out FOLDER --steps 2200 3000

Repeatable from `--seed` on one machine; run again with the same `--out` it goes on where it was. On a CPU the processes
of `--processes` share each batch and add up their gradients, so that no core waits for another within a step. The
learning rate rises for the first steps, stays, and falls to nothing before each end that `--steps` names, over a fifth
of the steps until there; whoever has less time than thought gives fewer steps when going on. The adapter is the mean
of what was reached at the ends: each errs at questions of its own, and their mean at fewer than any (averaged weights
of one training: Izmailov et al. 2018, arXiv:1803.05407). `curve.jsonl` has a line each ten steps.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from desk.training import lora
from desk.training.conversations import Conversation, batches
from desk.training.generators import GENERATORS

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RISE, FALL = 20, 0.2
LOGGED, SAVED = 10, 25

Numbers = dict[str, dict[str, torch.Tensor]]  # of each pair its A and B


def rate(step: int, end: int, most: float) -> float:
    """Return the learning rate at `step` (from 0) on the way to `end`."""
    return most * min(1.0, (step + 1) / RISE, (end - step) / max(1.0, FALL * end))


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
    rows, columns = torch.tensor(places).T
    # Causal, and padded behind: no token sees the padding, so no mask is needed.
    hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[rows, columns - 1]).float()
    each = nn.functional.cross_entropy(logits, ids[rows, columns].to(device), reduction="none")
    weight = torch.tensor(weights, device=device)
    return (each * weight).sum() / whole


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


def _add_up(parameters: Sequence[nn.Parameter], loss: torch.Tensor) -> float:
    """Give each process the sum of all processes' gradients, and return the sum of their losses."""
    grads = [one.grad for one in parameters if one.grad is not None]
    flat = torch.cat([loss.detach().reshape(1), *(grad.flatten() for grad in grads)])
    distributed.all_reduce(flat)
    for grad, summed in zip(grads, torch.split(flat[1:], [grad.numel() for grad in grads]), strict=True):
        grad.copy_(summed.view_as(grad))
    return flat[0].item()


def _train(rank: int, options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() and options.processes == 1 else "cpu")
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    # Of short rows on a CPU the fused attention's gradient takes longer than attention written out.
    attention = "sdpa" if device.type == "cuda" else "eager"
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, attn_implementation=attention).to(
        device
    )
    pairs = lora.adapt(model, TARGETS, options.rank, 2.0 * options.rank)
    parameters = [one for pair in pairs.values() for one in pair.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    out = Path(options.out)
    step, seconds, ends = _resume(out, pairs, optimizer)
    if passed := [end for end in options.steps if end <= step and end not in ends]:
        raise SystemExit(f"--steps: {out} is at step {step} and made no end at {passed}; name ends that are to come")
    drawn = batches("train", options.seed, options.batch, tokenizer, first=step, generators=options.generators)
    begun, losses = time.monotonic(), []
    last = options.steps[-1]
    while step < last:
        end = next(end for end in options.steps if end > step)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, end, options.rate)
        batch = next(drawn)
        loss = loss_of(model, batch[rank :: options.processes], device, weight_of(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(_add_up(parameters, loss) if options.processes > 1 else loss.item())
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        spent = seconds + time.monotonic() - begun
        if rank:
            continue
        if step == end:
            ends[step] = _numbers(pairs)
        if step % LOGGED == 0 or step == last:
            line = {
                "step": step,
                "examples": step * options.batch,
                "loss": round(sum(losses) / len(losses), 4),
                "rate": optimizer.param_groups[0]["lr"],
                "seconds": round(spent),
            }
            print(json.dumps(line), flush=True)
            with (out / "curve.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            losses = []
        if step % SAVED == 0 or step == end:
            state = {"step": step, "seconds": spent, "pairs": _numbers(pairs), "ends": ends}
            _save(out, {**state, "optimizer": optimizer.state_dict()})
    if not rank:
        _take_mean(pairs, [ends[end] for end in options.steps])
        lora.save(out / "adapter", pairs, base=options.name, task="CAUSAL_LM", dtype=torch.bfloat16)


def _save(out: Path, state: dict[str, Any]) -> None:
    """Write what going on needs, whole or not at all."""
    torch.save(state, out / "state.pt.new")
    (out / "state.pt.new").replace(out / "state.pt")


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
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="how many share a batch, on a CPU")
    options = parser.parse_args()
    if not 1 <= options.processes <= options.batch:
        parser.error("--processes: at least 1, and at most as many as a --batch has examples")
    if options.steps != sorted(set(options.steps)):
        parser.error("--steps: each end after the one before")
    train(options)


if __name__ == "__main__":
    main()
