"""What a light tenant waits beside a flood of another, and what fairness costs: first come, first served beside ours.

    python benchmarks/engine/fairness.py --model var/models/SmolLM2-135M-Instruct

One tenant sends 100 requests of 300 tokens at once, another a short one each second until the flood has ended; then
the same with bursts of long prompts by a third tenant. The engine runs in this process (`LocalEngine`), greedy, with
prompts of random ids, each. First come, first served is the same engine with one tenant for all. A request counts as
arrived at its second, whatever step runs then. The goal for its p99 is three steps of the full batch and its own
prefill, which is what it takes to its first token alone; for the tokens per second, 95 % of first come, first served.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
LIGHT_PROMPT, LIGHT_TOKENS = 16, 16
FLOOD_PROMPT = 32
BURST_TOKENS = 16


@dataclass
class Arrival:
    """A request with its arrival, in seconds after the start."""

    at: float
    tenant: str
    prompt: list[int]
    tokens: int
    steps: int = 0  # that had ended when it came
    ttft: float = 0.0
    ttft_steps: int = 0


@dataclass
class Result:
    """One run: what the light tenant's requests waited, the steps' seconds, and tokens per second in all."""

    light: list[Arrival] = field(default_factory=list)
    full_steps: list[float] = field(default_factory=list)  # with every row decoding
    tokens: int = 0
    seconds: float = 0.0
    preemptions: int = 0


def run(loaded: LoadedModel, options: argparse.Namespace, *, fair: bool, bursts: bool) -> Result:
    """Run the load on a fresh scheduler until all of it has ended."""
    config = EngineConfig("bench", "-", block_size=loaded.block_size, max_rows=options.rows, max_waiting=10_000,
                          max_waiting_per_tenant=10_000)  # fmt: skip
    engine = LocalEngine(config, loaded)
    rng = random.Random(1)
    result, requests = Result(), {}
    start = time.perf_counter()

    def submit(arrival: Arrival) -> None:
        name = str(len(requests))
        requests[name] = arrival
        arrival.steps = engine.steps
        request = GenerationRequest(name, tenant=arrival.tenant if fair else "all", domain="d", sampling=GREEDY)
        engine.submit(Prompt(request, arrival.tokens, ids=tuple(arrival.prompt)))

    def ids(count: int) -> list[int]:
        return [rng.randrange(3, loaded.vocab_size) for _ in range(count)]

    for _ in range(options.requests):
        submit(Arrival(0.0, "flood", ids(FLOOD_PROMPT), options.tokens))
    flooding = options.requests
    next_light, next_burst = 0.5, 1.0
    while engine.unfinished:
        now = time.perf_counter() - start
        while next_light <= now and flooding:
            submit(Arrival(next_light, "light", ids(LIGHT_PROMPT), LIGHT_TOKENS))
            next_light += 1.0
        while bursts and next_burst <= now and flooding:
            for _ in range(options.burst):
                submit(Arrival(next_burst, "bursts", ids(options.burst_prompt), BURST_TOKENS))
            next_burst += options.burst_every
        outputs = engine.step()
        ended = time.perf_counter() - start
        if sum(bool(output.tokens) for output in outputs) == options.rows:
            result.full_steps.append(ended - now)
        for output in outputs:
            arrival = requests[output.request_id]
            result.tokens += len(output.tokens)
            if output.tokens and not arrival.ttft:
                # The step that ran when it came counts as well.
                arrival.ttft, arrival.ttft_steps = ended - arrival.at, engine.steps - arrival.steps + 1
            if output.finished is not None:
                result.tokens += len(arrival.prompt)
                flooding -= arrival.tenant == "flood"
    result.seconds = time.perf_counter() - start
    result.light = [arrival for arrival in requests.values() if arrival.tenant == "light"]
    result.preemptions = sum(scheduler.stats().preemptions for scheduler in engine.schedulers)
    return result


def prefill_alone(loaded: LoadedModel, options: argparse.Namespace) -> float:
    """Return the median seconds to the first token of a light request that is alone."""
    config = EngineConfig("bench", "-", block_size=loaded.block_size, max_rows=options.rows, prefix_cache=False)
    engine = LocalEngine(config, loaded)
    taken: list[float] = []
    for number in range(9):
        ids = tuple(range(3 + number, 3 + number + LIGHT_PROMPT))
        engine.submit(Prompt(GenerationRequest(str(number), tenant="a", domain="d", sampling=GREEDY), 1, ids=ids))
        begin = time.perf_counter()
        while engine.unfinished:
            engine.step()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def percentile(values: list[float], part: float) -> float:
    """The least value that at least this part of the values don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub id, folder or GGUF file")
    parser.add_argument("--requests", type=int, default=100, help="of the flood")
    parser.add_argument("--tokens", type=int, default=300, help="of each of them")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--burst", type=int, default=8, help="long prompts of a burst")
    parser.add_argument("--burst-prompt", type=int, default=1000, help="tokens of each of them")
    parser.add_argument("--burst-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()

    room = options.rows * (FLOOD_PROMPT + options.tokens) + 4 * (options.burst_prompt + BURST_TOKENS)
    config = EngineConfig("bench", options.model, dtype=options.dtype, kv_tokens=room)
    loaded = load_model(config, threads=options.threads)
    print("; ".join(f"{name}: {text}" for name, text in loaded.details.items()))
    print(f"{options.requests} requests of {options.tokens} tokens, {options.rows} rows, {options.threads} threads\n")
    print("| load | order | TTFT p50, s | p99, s | p99, steps | full step, s | allowed, s | tokens/s | preempted |")
    print("|---|---|---|---|---|---|---|---|---|")
    run(loaded, argparse.Namespace(**{**vars(options), "requests": 4, "tokens": 8}), fair=True, bursts=False)  # warm-up
    own = prefill_alone(loaded, options)
    verdicts: list[str] = []
    full_steps: list[float] = []
    for load, bursts in (("flood", False), ("flood and bursts", True)):
        rates: list[float] = []
        for order, fair in (("first come", False), ("fair", True)):
            done = run(loaded, options, fair=fair, bursts=bursts)
            waits = [arrival.ttft for arrival in done.light]
            full_steps += done.full_steps  # with long prompts there are few
            step = statistics.median(full_steps)
            p99, allowed = percentile(waits, 0.99), 3 * step + own
            steps = percentile([arrival.ttft_steps for arrival in done.light], 0.99)
            rates.append(done.tokens / done.seconds)
            print(
                f"| {load} | {order} | {percentile(waits, 0.5):.3f} | {p99:.3f} | {steps:.0f} | {step:.3f} | "
                f"{allowed:.3f} | {rates[-1]:.0f} | {done.preemptions} |",
                flush=True,
            )
        verdicts.append(
            f"{load}: p99 {p99 / step:.1f} full steps, {'within' if p99 <= allowed else 'past'} three and the own "
            f"prefill ({own:.3f} s); {rates[1] / rates[0]:.2f} of the tokens/s of first come, first served"
        )
    print("", *verdicts, sep="\n")


if __name__ == "__main__":
    main()
