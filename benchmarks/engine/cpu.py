"""A whole model on the CPU, by tier and quantisation: prefill, decode at 1, 8 and 32 rows, long context, a mixed load.

    python benchmarks/engine/cpu.py                    # ours alone: bf16, W8A8, int4, torch operators
    python benchmarks/engine/cpu.py --generate         # beside transformers' generate
    python benchmarks/engine/cpu.py --kv-dtype int8    # with K/V in eight bits
    benchmarks/engine/peers/run.sh                     # beside vLLM, llama.cpp and transformers

The model has the shape of Qwen3-0.6B and random weights; `--model` takes a folder instead. Requests are greedy and
ignore the end of sequence. Every part is run by all engines in turns, `--runs` times; the table gives medians, in
tokens per second (prefill: of the prompt; else of the output). The machine's own limits stand above the table. A peer
is a program of `peers/`; there is a pause before each measurement, since some peers' threads go on for up to a second
after an answer, and would take a core from whoever comes next.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch
from limits import bandwidth, matmul_rate
from peers.workload import PARTS, measure

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.local.engine import LocalEngine
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
OURS: dict[str, dict[str, Any]] = {
    "ours bf16": {"dtype": "bfloat16"},
    "ours W8A8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "ours int4": {"dtype": "bfloat16", "quantization": "int4"},
    "ours torch operators": {"dtype": "bfloat16", "options": {"tier": "torch"}},
}


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


def ours(model: Path, settings: dict[str, Any], kv_tokens: int) -> Callable[[str], float]:
    loaded = load_model(
        EngineConfig("bench", str(model), kv_tokens=kv_tokens, **settings), threads=torch.get_num_threads()
    )
    print("; ".join(f"{name}: {text}" for name, text in loaded.details.items() if name != "folder"), flush=True)

    def rate(part: str) -> float:
        """The parts that measure decode read their prompts without the bound that keeps others' tokens coming."""
        bound = {} if part == "mixed" else {"prefill_seconds": 0.0}
        config = EngineConfig("bench", "-", block_size=loaded.block_size, prefix_cache=False, **bound)
        engine = LocalEngine(config, loaded)
        for number, (ids, new) in enumerate(PARTS[part]):
            request = GenerationRequest(str(number), tenant="t", domain="d", sampling=GREEDY)
            engine.submit(Prompt(request, new, ids=tuple(ids)))
        return measure(part, lambda: [(one.request_id, len(one.tokens)) for one in engine.step() if one.tokens])

    rate("batch 1")
    return rate


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
        if part in {"mixed", "32 × 2048"}:
            return math.nan  # it takes one length only, and minutes
        if part.startswith("prefill"):
            return 512 / seconds(ids, 1)
        return len(ids) * (new - 1) / (seconds(ids, new) - seconds(ids, 1))

    return measured


def peer_command(command: str) -> Callable[[str], float]:
    """Start a peer that answers parts by lines. It ends with this program, and so do the processes that it starts."""
    words = shlex.split(command)
    theirs = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}  # it is our worker's alone
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=theirs
    )
    atexit.register(end_session, process.pid)
    assert process.stdin is not None
    assert process.stdout is not None

    def line_of(start: str) -> str:
        for line in process.stdout or ():
            if line.startswith(start):
                return line
        raise SystemExit(f"{command} ended with {process.wait()}")

    def rate(part: str) -> float:
        print(part, file=process.stdin, flush=True)
        return float(line_of(f"{part}:").split(":")[1])

    line_of("ready")
    return rate


def end_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def table(names: Iterable[str], parts: list[str], measured: dict[tuple[str, str], list[float]]) -> str:
    lines = ["| engine | " + " | ".join(parts) + " |", "|---|" + "---|" * len(parts)]
    for name in names:
        cells = [f"{statistics.median(measured[name, part]):.1f}" for part in parts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads an option of several of the `known` names, separated by commas."""

    def names(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(known)}")
        return found

    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; default: random weights of Qwen3-0.6B's shape")
    usual = [part for part in PARTS if part != "32 × 2048"]
    parser.add_argument("--parts", type=some_of(PARTS), default=usual, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--ours", type=some_of(OURS), default=list(OURS), help=f"of {', '.join(OURS)}; empty for none")
    parser.add_argument("--kv-dtype", default="auto", help="of each of ours on the C kernels: auto or int8")
    parser.add_argument("--kv-tokens", type=int, default=12_000, help="of each of ours; 32 × 2048 needs 75,000")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--pause", type=float, default=2.0, help="seconds before each measurement")
    parser.add_argument("--generate", action="store_true")
    parser.add_argument("--peers", nargs="*", default=[], metavar="NAME=COMMAND")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what `atexit` holds is done
    torch.set_num_threads(options.threads)
    model = options.model or make_model(Path(tempfile.gettempdir()) / f"sluice-bench-0.6b-{os.getuid()}")
    engines: dict[str, Callable[[str], float]] = {}
    for name in options.ours:
        on_torch = "options" in OURS[name]
        kv_dtype = "auto" if on_torch else options.kv_dtype
        shown = name if kv_dtype == "auto" else f"{name}, K/V in {kv_dtype}"
        engines[shown] = ours(model, {**OURS[name], "kv_dtype": kv_dtype}, options.kv_tokens)
    if options.generate:
        engines["transformers generate"] = generate(model)
    for peer in options.peers:
        name, _, command = peer.partition("=")
        engines[name] = peer_command(command)
    measured: dict[tuple[str, str], list[float]] = {}
    reads, products = [], []
    for turn in range(options.runs):
        reads.append(bandwidth())
        products.append(matmul_rate(torch.bfloat16))
        for part in options.parts:
            for name in list(engines)[:: 1 if turn % 2 else -1]:
                time.sleep(options.pause)
                measured.setdefault((name, part), []).append(engines[name](part))
    print(
        f"\nmemory {statistics.median(reads):.1f} GB/s, bf16 matmul {statistics.median(products):.0f} GFLOP/s, ", end=""
    )
    print(f"{options.threads} threads, {options.runs} runs\n")
    print(table(engines, options.parts, measured))


if __name__ == "__main__":
    main()
