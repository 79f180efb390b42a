"""Tokens per second with drafts from the text itself and without, on text that repeats and on text that doesn't.

    python benchmarks/engine/speculation.py --model var/models/SmolLM2-135M-Instruct

Each work is run with and without in turns; a cell has the best tokens per second with drafts divided by the best
without, and in brackets the output tokens for each step of a stream. The answers are the same. "code" asks to change a
name in a file of ours, "JSON" to extract fields from lines, "summary" to sum up a page of ours, all greedy: small
models also repeat themselves then, which flatters. "story" is sampled at temperature 1. "wrong drafts" is the worst
case: random words of six tokens, so that what followed the last two or three stands there often and is mostly wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local import schedulers
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.text.prepare import Prompt
from inference.text.tokenizer import FolderTokenizer
from inference.types import GenerationRequest, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
FORMS = {
    "bf16": {"dtype": "bfloat16"},
    "W8A8": {"dtype": "bfloat16", "quantization": "w8a8"},
}
LINES = "\n".join(
    f"order {1000 + 7 * i}: customer {name}, city {city}, total {17 * i + 5}.{i}0 euros"
    for i, (name, city) in enumerate(
        (("Ada Lovelace", "London"), ("Carl Gauss", "Brunswick"), ("Emmy Noether", "Erlangen"), ("Kurt Gödel", "Brno"))
    )
)
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def works(tokenizer: FolderTokenizer) -> dict[str, tuple[str, SamplingParams]]:
    """Return each work's question and sampling."""
    code = (ROOT / "inference" / "core" / "bounds.py").read_text()
    page = (ROOT / "docs" / "engine.md").read_text()[1600:4600]
    six = tuple(tokenizer.encode(word)[0] for word in (" one", " two", " three", " red", " blue", " green"))
    return {
        "code": (f"Rename the class StepBounds to Limits and write the whole file:\n```python\n{code}```", GREEDY),
        "JSON": (f"Write a JSON list with number, customer, city and total of each order:\n{LINES}", GREEDY),
        "summary": (f"Sum up this page in five sentences, quoting its own words:\n{page}", GREEDY),
        "story": ("Tell a story about a lighthouse.", replace(GREEDY, temperature=1.0)),
        "wrong drafts": ("Say words.", replace(GREEDY, temperature=100.0, allowed_token_ids=six)),
    }


def run(loaded: LoadedModel, prompts: list[Prompt], drafts: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Return tokens per second of all answers at once, without their prefill, and tokens for each step of one."""
    config = EngineConfig("bench", "-", block_size=loaded.block_size, speculation=drafts)
    engine = LocalEngine(config, loaded)
    for prompt in prompts:
        engine.submit(prompt)
    begun: set[str] = set()
    while len(begun) < len(prompts):
        begun |= {output.request_id for output in engine.step() if output.tokens}
    tokens = rows = 0
    begin = clock()
    while engine.unfinished:
        outputs = [output for output in engine.step() if output.tokens]
        tokens += sum(len(output.tokens) for output in outputs)
        rows += len(outputs)
    return tokens / (clock() - begin), tokens / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub id, folder or GGUF file")
    parser.add_argument("--streams", default="1,2,4")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--new", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--works", default="", help="some of them")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument(
        "--rows", type=int, default=schedulers.DRAFTING_ROWS, help="how many may run while steps have drafts"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true", help="of one thread instead of the clock: on a busy machine")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    options.threads = 1 if options.cpu_time else options.threads
    schedulers.DRAFTING_ROWS = options.rows
    streams = [int(part) for part in options.streams.split(",")]
    print(f"{options.drafts} drafts while at most {options.rows} run, {options.threads} threads, {options.runs} runs\n")
    table: list[str] = []
    for form in options.forms.split(","):
        loaded = load_model(
            EngineConfig("bench", options.model, kv_tokens=8192, **FORMS[form]), threads=options.threads
        )
        tokenizer = FolderTokenizer(loaded.tokenizer_folder)
        for name, (question, sampling) in works(tokenizer).items():
            if options.works and name not in options.works.split(","):
                continue
            ids = tokenizer.prompt([Message("user", (question,))])
            cells: list[str] = []
            for count in streams:
                prompts = [
                    Prompt(
                        GenerationRequest(str(number), "t", "d", sampling=replace(sampling, seed=number)),
                        options.new,
                        ids=tuple(ids),
                    )
                    for number in range(count)
                ]
                rates: dict[int, list[float]] = {0: [], options.drafts: []}
                per_step = 1.0
                for turn in range(options.runs):
                    for drafts in (0, options.drafts)[:: 1 if turn % 2 else -1]:
                        rate, each = run(loaded, prompts, drafts, clock)
                        rates[drafts].append(rate)
                        per_step = max(per_step, each)
                best, plain = max(rates[options.drafts]), max(rates[0])
                cells += [f"{plain:.0f}", f"{best / plain:.2f} ({per_step:.2f})"]
            table.append(f"| {form} | {name} | " + " | ".join(cells) + " |")
            print(table[-1], flush=True)
    heads = [f"{count} without, tokens/s | with" for count in streams]
    print("\n| precision | work | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * 2 * len(streams))
    print(*table, sep="\n")


if __name__ == "__main__":
    main()
