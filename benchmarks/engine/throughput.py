"""Tokens per second of the engine (in process) beside `transformers.generate`, in one run.

    python benchmarks/engine/throughput.py --model var/models/SmolLM2-135M-Instruct

Greedy, the end of sequence ignored, every stream with its own prompt of the same length (what suits `generate` best:
no padding). Both sides run the same dtype on the same threads, in turns, so that a noisy neighbour meets both; the
table gives medians. Times include the prefill.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it, for both sides

import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def run_engine(loaded: LoadedModel, prompts: list[list[int]], new: int) -> float:
    """Seconds for all prompts at once, on a fresh scheduler."""
    engine = LocalEngine(EngineConfig("bench", "-", block_size=loaded.block_size), loaded)
    begin = time.perf_counter()
    for i, prompt in enumerate(prompts):
        request = GenerationRequest(str(i), tenant="t", domain="d", sampling=GREEDY)
        engine.submit(Prompt(request, new, ids=tuple(prompt)))
    while engine.unfinished:
        engine.step()
    return time.perf_counter() - begin


def run_generate(model: Any, prompts: list[list[int]], new: int) -> float:
    """Seconds for one batch of `generate`."""
    ids = torch.tensor(prompts)
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new
        )
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub id, folder or GGUF file")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate for each stream")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--no-peer", action="store_true", help="leave transformers.generate out")
    options = parser.parse_args()

    config = EngineConfig("bench", options.model, dtype=options.dtype, kv_tokens=64 * (options.prompt + options.new))
    loaded = load_model(config, threads=options.threads)
    print("; ".join(f"{name}: {text}" for name, text in loaded.details.items()))
    model = None
    if not options.no_peer:
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, loaded.details["dtype"].split()[0])
        model = AutoModelForCausalLM.from_pretrained(loaded.tokenizer_folder, dtype=dtype).eval()
        model.generation_config.pad_token_id = 0
    print(f"threads {options.threads}, prompts of {options.prompt}, {options.new} new tokens, {options.runs} runs\n")
    print("| streams | engine, tokens/s | transformers.generate, tokens/s | ratio |")
    print("|---|---|---|---|")
    generator = torch.Generator().manual_seed(1)
    for streams in (int(part) for part in options.streams.split(",")):
        engine, peer = [], []
        for number in range(options.runs + 1):
            prompts = torch.randint(3, loaded.vocab_size, (streams, options.prompt), generator=generator).tolist()
            new = options.new if number else 2  # the first run warms up
            ours = run_engine(loaded, prompts, new)
            theirs = run_generate(model, prompts, new) if model is not None else float("nan")
            if number:
                engine.append(streams * options.new / ours)
                peer.append(streams * options.new / theirs)
        ours, theirs = statistics.median(engine), statistics.median(peer)
        print(f"| {streams} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
