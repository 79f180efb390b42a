"""What tenants wait for beside each other, and what fairness costs: first come, first served beside ours.

    python benchmarks/engine/fairness.py
    python benchmarks/engine/fairness.py --model var/models/SmolLM2-135M-Instruct

Without a model it prints in seconds what the scheduler does on an imagined machine (0.6B parameters on two cores; a
step costs what `tests/inference/core/machine.py` says): what equal tenants wait whose prompts come at once, and a small
request beside many busy tenants or one that floods. With a model it measures a flood.

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

from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams
from tests.inference.core.crowd import ANSWER, CPU, PROMPT, Waits, equal_tenants, small_beside
from tests.inference.core.test_flood_seconds import Run, allowed, flood

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


def print_imagined() -> None:
    """Print what the scheduler does on an imagined machine."""
    print(f"Equal tenants, a prompt of {PROMPT} tokens each at once; seconds to the first token\n")
    print("| tenants | mean by turn | in order of arrival | ratio | last by turn | in order of arrival |")
    print("|---|---|---|---|---|---|")
    for tenants in (1, 8, 32, 40, 200):
        ours, arrival = (equal_tenants(CPU, tenants, is_fair=is_fair) for is_fair in (True, False))
        print(
            f"| {tenants} | {ours.mean:.2f} | {arrival.mean:.2f} | {ours.mean / arrival.mean:.3f} | {ours.last:.2f} | "
            f"{arrival.last:.2f} |",
            flush=True,
        )
    print("\nA small request each five seconds, beside tenants that always have one; seconds to its first token\n")
    print("| tenants | their prompts | answers | median | longest | rows taken back |")
    print("|---|---|---|---|---|---|")
    for tenants in (40, 200):
        for prompt, answer in ((PROMPT, ANSWER), (PROMPT, 300), (64, 300)):
            small: Waits = small_beside(CPU, tenants, prompt=prompt, answer=answer)
            print(
                f"| {tenants} | {prompt} | {answer} | {small.median:.2f} | {small.last:.2f} | {small.preempted} |",
                flush=True,
            )
    print("\nA small request each second beside one tenant's 100 of 300 tokens; seconds to its first token\n")
    print("| others | p99 by turn | in order of arrival | three full steps and the prompt | tokens/s of those |")
    print("|---|---|---|---|---|")
    for others, burst in (("none", 0), ("8 prompts of 1,000 each 10 s", 8)):
        runs: list[Run] = [
            flood(CPU, requests=100, tokens=300, burst=burst, is_fair=is_fair) for is_fair in (True, False)
        ]
        rate = runs[0].tokens / runs[0].seconds * runs[1].seconds / runs[1].tokens
        print(f"| {others} | {runs[0].p99:.3f} | {runs[1].p99:.3f} | {allowed(CPU):.3f} | {rate:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub id, folder or GGUF file (default: an imagined machine)")
    parser.add_argument("--requests", type=int, default=100, help="of the flood")
    parser.add_argument("--tokens", type=int, default=300, help="of each of them")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--burst", type=int, default=8, help="long prompts of a burst")
    parser.add_argument("--burst-prompt", type=int, default=1000, help="tokens of each of them")
    parser.add_argument("--burst-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--threads", type=int, default=0, help="of the model (default: torch's)")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    if options.model is None:
        print_imagined()
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure a flood on the model, and print it."""
    import torch  # here and not above: it takes longer than what is imagined

    from inference.architectures.load import load_model

    options.threads = options.threads or torch.get_num_threads()
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
