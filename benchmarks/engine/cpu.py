"""A whole model on the CPU, by tier and quantisation: prefill, decode at 1, 8 and 32 rows, long context, a mixed load.

    python benchmarks/engine/cpu.py                    # ours alone: bf16, W8A8, int4, torch operators
    python benchmarks/engine/cpu.py --generate         # beside transformers' generate
    python benchmarks/engine/cpu.py --peers 'vLLM=/opt/vllm/bin/python base_vllm.py {model} {part}' …

The model has the shape of Qwen3-0.6B and random weights; `--model` takes a folder instead. Requests are greedy and
ignore the end of sequence. Every part is run by all engines in turns, `--runs` times; the table gives medians, in
tokens per second (prefill: of the prompt; else of the output). A peer is a command that prints "PART: RATE" for the
part that it is given; {model} is the folder. The machine's own limits stand above the table.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch
from limits import bandwidth, matmul_rate

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 4096,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
OURS = {
    "ours bf16": {"dtype": "bfloat16"},
    "ours W8A8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "ours int4": {"dtype": "bfloat16", "quantization": "int4"},
    "ours, torch operators": {"dtype": "bfloat16", "options": {"tier": "torch"}},
}
Job = tuple[list[int], int]  # prompt and how many tokens to generate


def make_model(folder: Path) -> Path:
    """Write the random model to `folder`, unless it is there."""
    if not (folder / "config.json").is_file():
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        with torch.device("meta"):
            model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, eos_token_id=1, bos_token_id=None, pad_token_id=0))
        model = model.to(torch.bfloat16).to_empty(device="cpu")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(1) if "norm" in name else parameter.normal_(0, 0.02)
        model.tie_weights()
        model.save_pretrained(folder)
    return folder


def prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(300, 15_000) for _ in range(length)]


def mixed() -> list[Job]:
    """32 requests: prompts of 16 to 512 tokens (log-uniform), 16 to 128 of output."""
    chance = random.Random(7)
    lengths = [
        (round(math.exp(chance.uniform(math.log(16), math.log(512)))), chance.randint(16, 128)) for _ in range(32)
    ]
    return [(prompt(length, 1000 + i), new) for i, (length, new) in enumerate(lengths)]


PARTS: dict[str, list[Job]] = {
    "prefill 512": [(prompt(512, 1), 1)],
    "batch 1": [(prompt(128, 0), 48)],
    "batch 8": [(prompt(128, i), 32) for i in range(8)],
    "batch 32": [(prompt(128, i), 20) for i in range(32)],
    "32 × 2,048": [(prompt(2032, i), 16) for i in range(32)],
    "mixed": mixed(),
}


def run(loaded: LoadedModel, jobs: list[Job]) -> tuple[list[float], int]:
    """Run all jobs at once; return the time of each step's end, and the number of the first step with all decoding."""
    engine = LocalEngine(EngineConfig("bench", "-", block_size=loaded.block_size, prefix_cache=False), loaded)
    begin = time.perf_counter()
    for number, (ids, new) in enumerate(jobs):
        request = GenerationRequest(str(number), tenant="t", domain="d", sampling=GREEDY)
        engine.submit(Prompt(request, new, ids=tuple(ids)))
    ends: list[float] = []
    started: set[str] = set()
    all_started = 0
    while engine.unfinished:
        outputs = engine.step()
        ends.append(time.perf_counter() - begin)
        started |= {output.request_id for output in outputs if output.tokens}
        if len(started) == len(jobs) and not all_started:
            all_started = len(ends)
    return ends, all_started


def rate(part: str, ends: list[float], all_started: int) -> float:
    """Tokens per second: of the prompt, of all output, or of the steps in which every row decodes."""
    jobs = PARTS[part]
    if part.startswith("prefill"):
        return len(jobs[0][0]) / ends[-1]
    if part == "mixed":
        return sum(new for _, new in jobs) / ends[-1]
    last = max(len(ends) - 1 - sum(1 for _ in jobs) // 8, all_started)  # the last steps may have fewer rows
    steps = ends[all_started - 1 : last]
    return len(jobs) * (len(steps) - 1) / (steps[-1] - steps[0])


def ours(model: Path, settings: dict[str, object]) -> Callable[[str], float]:
    loaded = load_model(
        EngineConfig("bench", str(model), kv_tokens=12_000, **settings), threads=torch.get_num_threads()
    )
    print("; ".join(f"{name}: {text}" for name, text in loaded.details.items() if name != "folder"), flush=True)
    run(loaded, [(prompt(32, 0), 4)])
    return lambda part: rate(part, *run(loaded, PARTS[part]))


def generate(model: Path) -> Callable[[str], float]:
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    peer.generation_config.pad_token_id = 0

    def seconds(ids: list[list[int]], new: int) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            batch = torch.tensor(ids)
            mask = torch.ones_like(batch)
            peer.generate(batch, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new)
        return time.perf_counter() - begin

    def measured(part: str) -> float:
        ids, new = [job[0] for job in PARTS[part]], PARTS[part][0][1]
        if part in {"mixed", "32 × 2,048"}:
            return math.nan  # it takes one length only, and minutes
        if part.startswith("prefill"):
            return 512 / seconds(ids, 1)
        return len(ids) * (new - 1) / (seconds(ids, new) - seconds(ids, 1))

    return measured


def peer_command(command: str, model: Path) -> Callable[[str], float]:
    def measured(part: str) -> float:
        words = shlex.split(command.format(model=model, part=part))
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return float(next(line for line in printed.splitlines() if line.startswith(f"{part}:")).split(":")[1])

    return measured


def table(names: Iterable[str], parts: list[str], measured: dict[tuple[str, str], list[float]]) -> str:
    lines = ["| engine | " + " | ".join(parts) + " |", "|---|" + "---|" * len(parts)]
    for name in names:
        cells = [f"{statistics.median(measured[name, part]):.1f}" for part in parts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; default: random weights of Qwen3-0.6B's shape")
    parser.add_argument("--parts", default=",".join(part for part in PARTS if part != "32 × 2,048"))
    parser.add_argument("--ours", default=",".join(OURS), help="which of ours")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--generate", action="store_true")
    parser.add_argument("--peers", nargs="*", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = options.model or make_model(Path(tempfile.gettempdir()) / f"sluice-bench-0.6b-{os.getuid()}")
    engines = {name: ours(model, OURS[name]) for name in options.ours.split(",") if name}
    if options.generate:
        engines["transformers generate"] = generate(model)
    for peer in options.peers:
        name, _, command = peer.partition("=")
        engines[name] = peer_command(command, model)
    parts = options.parts.split(",")
    measured: dict[tuple[str, str], list[float]] = {}
    reads, products = [], []
    for turn in range(options.runs):
        reads.append(bandwidth())
        products.append(matmul_rate(torch.bfloat16))
        for part in parts:
            for name in list(engines)[:: 1 if turn % 2 else -1]:
                measured.setdefault((name, part), []).append(engines[name](part))
    print(
        f"\nmemory {statistics.median(reads):.1f} GB/s, bf16 matmul {statistics.median(products):.0f} GFLOP/s, ", end=""
    )
    print(f"{options.threads} threads, {options.runs} runs\n")
    print(table(engines, parts, measured))


if __name__ == "__main__":
    main()
