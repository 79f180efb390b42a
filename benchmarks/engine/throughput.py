"""Tokens per second of the engine (in process) beside llama.cpp on the same GGUF file and `transformers.generate`.

    python benchmarks/engine/throughput.py --model var/models/SmolLM2-135M-Instruct
    python benchmarks/engine/throughput.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Greedy, the end of sequence ignored, every stream with its own prompt of the same length (what suits `generate` best:
no padding). All run on the same threads, in turns, so that a noisy neighbour meets each; the table gives medians. Times
include the prefill. `--ours` chooses precisions of this engine; `generate` runs in the first one's dtype. llama.cpp
runs the file as it is (`llama.py` says what that needs).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it, for all

import torch
from llama import Llama

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
OURS = {
    "auto": {},
    "bf16": {"dtype": "bfloat16"},
    "fp32": {"dtype": "float32"},
    "w8a8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
Seconds = Callable[[list[list[int]], int], float]


def engine(loaded: LoadedModel) -> Seconds:
    """Seconds for all prompts at once, on a fresh scheduler."""

    def measured(prompts: list[list[int]], new: int) -> float:
        engine = LocalEngine(EngineConfig("bench", "-", block_size=loaded.block_size), loaded)
        begin = time.perf_counter()
        for i, prompt in enumerate(prompts):
            request = GenerationRequest(str(i), tenant="t", domain="d", sampling=GREEDY)
            engine.submit(Prompt(request, new, ids=tuple(prompt)))
        while engine.unfinished:
            engine.step()
        return time.perf_counter() - begin

    return measured


def generate(model: Any) -> Seconds:
    """Seconds for one batch of `generate`."""

    def measured(prompts: list[list[int]], new: int) -> float:
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new
            )
        return time.perf_counter() - begin

    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="hub id or folder")
    source.add_argument("--gguf", type=Path, help="a GGUF file, for llama.cpp too")
    parser.add_argument("--ours", default="auto", help=f"some of {', '.join(OURS)}")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate for each stream")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-peer", action="store_true", help="leave transformers.generate out")
    options = parser.parse_args()

    sides: dict[str, Seconds] = {}
    for name in options.ours.split(","):
        config = EngineConfig(
            "bench", str(options.model or options.gguf), kv_tokens=64 * (options.prompt + options.new), **OURS[name]
        )
        loaded = load_model(config, threads=options.threads)
        print("; ".join(f"{key}: {text}" for key, text in loaded.details.items() if key != "folder"), flush=True)
        dtype = loaded.details["dtype"].split()[0]
        sides[f"ours, {dtype if name == 'auto' else name}"] = engine(loaded)
        if len(sides) == 1 and not options.no_peer:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(loaded.tokenizer_folder, dtype=getattr(torch, dtype)).eval()
            model.generation_config.pad_token_id = 0
            peer = f"transformers generate, {dtype}"
    if not options.no_peer:
        sides[peer] = generate(model)
    llama = Llama(options.gguf, threads=options.threads) if options.gguf else None
    if llama is not None:
        sides[f"llama.cpp, {options.gguf.name.split('.')[-2]}"] = llama.seconds
    print(f"threads {options.threads}, prompts of {options.prompt}, {options.new} new tokens, {options.runs} runs\n")
    print("| streams | " + " | ".join(sides) + " |\n|---|" + "---|" * len(sides))
    generator = torch.Generator().manual_seed(1)
    for streams in (int(part) for part in options.streams.split(",")):
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(options.runs + 1):
            prompts = torch.randint(3, loaded.vocab_size, (streams, options.prompt), generator=generator).tolist()
            new = options.new if number else 2  # the first run warms up
            for name in list(sides)[:: 1 if number % 2 else -1]:
                seconds = sides[name](prompts, new)
                if number:
                    rates[name].append(streams * new / seconds)
        cells = " | ".join(f"{statistics.median(each):.1f}" for each in rates.values())
        print(f"| {streams} | {cells} |", flush=True)
    if llama is not None:
        llama.close()


if __name__ == "__main__":
    main()
