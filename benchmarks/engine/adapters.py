"""What adapters cost: tokens per second of 1, 8 and 32 streams without any, all with one, and up
to sixteen.

    python benchmarks/engine/adapters.py --model var/models/SmolLM2-135M-Instruct

The adapters have random weights and change every linear layer. Each number of adapters has an engine of its own, and
they take their decoding steps in turns, so that a noisy neighbour meets all; a cell has the tokens per second of the
median step, and in brackets that divided by those without adapters. Below stand how long loading one took, and their
memory. Last come the gaps between the tokens of one running stream: the median and the longest beside no loading, the
longest while sixteen are read beside it, by as many threads as the row says (a worker has one), and that over the
median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.execution.adapter_room import Bounds
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams
from tests.inference.adapting import save_adapter

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
KINDS = (0, 1, 2, 4, 8, 16)
LEAST_TOKENS = 100


def decoding(loaded: LoadedModel, streams: int, adapters: int, *, prompt: int, new: int) -> LocalEngine:
    """Return an engine whose `streams` requests decode, with the first `adapters` adapters in turns."""
    engine = LocalEngine(EngineConfig("bench", "-", block_size=loaded.block_size, max_rows=streams), loaded)
    for i in range(streams):
        key = loaded.adapters.load(f"a{i % adapters}") if adapters and loaded.adapters is not None else ""
        ids = tuple(3 + (i * 31 + k * 7) % (min(1000, loaded.vocab_size) - 3) for k in range(prompt))
        request = GenerationRequest(str(i), tenant="t", domain="d", sampling=GREEDY)
        engine.submit(Prompt(request, new, ids=ids, adapter=key))
    begun: set[str] = set()
    while len(begun) < streams:
        begun |= {output.request_id for output in engine.step() if output.tokens}
    for _ in range(3):  # until its step is recorded
        engine.step()
    return engine


def rates(loaded: LoadedModel, streams: int, kinds: Sequence[int], *, prompt: int, steps: int) -> dict[int, float]:
    """Return the tokens per second of the median decoding step of each number of adapters.

    The engines share the model's K/V, which doesn't change what a step takes.
    """
    engines = {kind: decoding(loaded, streams, kind, prompt=prompt, new=steps + streams + 8) for kind in kinds}
    seconds: dict[int, list[float]] = {kind: [] for kind in kinds}
    for _ in range(steps):
        for kind, engine in engines.items():
            begin = time.perf_counter()
            tokens = sum(len(output.tokens) for output in engine.step())
            if tokens == streams:
                seconds[kind].append(time.perf_counter() - begin)
    return {kind: streams / statistics.median(taken) for kind, taken in seconds.items()}


def gaps(loaded: LoadedModel, folders: dict[str, Path], readers: int, *, prompt: int) -> tuple[list[float], float]:
    """Return the seconds between the tokens of one stream while `readers` threads read the adapters, and what that
    took; without readers those of a hundred tokens.
    """
    assert loaded.adapters is not None
    loaded.adapters.offer({})  # forgets those in memory
    loaded.adapters.offer(folders, Bounds(len(folders)))
    engine = decoding(loaded, 1, 0, prompt=prompt, new=4000)
    found: list[float] = []
    begin = last = time.perf_counter()
    with ThreadPoolExecutor(max(1, readers)) as pool:
        reading = [pool.submit(loaded.adapters.check, name) for name in folders] if readers else []
        while not all(one.done() for one in reading) or len(found) < LEAST_TOKENS * (not readers):
            if any(output.tokens for output in engine.step()):
                now = time.perf_counter()
                found.append(now - last)
                last = now
        took = time.perf_counter() - begin
    engine.cancel_all()
    while engine.unfinished:
        engine.step()
    return found, took


def print_gaps(loaded: LoadedModel, folders: dict[str, Path], readers: Sequence[int], rounds: int, prompt: int) -> None:
    """Print how long a running stream pauses while adapters are read, the medians of so many rounds in turns."""
    print("readers  median gap  longest  while they load  over the median  all read in")
    rows: dict[int, list[tuple[float, ...]]] = {count: [] for count in readers}
    for _ in range(rounds):
        for count in readers:
            usual, _ = gaps(loaded, folders, 0, prompt=prompt)
            beside, took = gaps(loaded, folders, count, prompt=prompt)
            median = statistics.median(usual)
            rows[count].append((median, max(usual), max(beside), max(beside) / median, took))
    for count, found in rows.items():
        median, longest, worst, ratio, took = (statistics.median(column) for column in zip(*found, strict=True))
        times = f"{median * 1e3:7.1f} ms {longest * 1e3:5.1f} ms {worst * 1e3:13.1f} ms"
        print(f"{count:7}  {times} {ratio:16.1f} {took:11.2f} s")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a folder with model.safetensors")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=100, help="decoding steps of each number of adapters")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--readers", default="1,4", help="threads that read the adapters beside a running stream")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of reading with each number of them")
    options = parser.parse_args()
    settings = {"dtype": options.dtype, "quantization": options.quantization, "device": options.device}
    loaded = load_model(EngineConfig("bench", str(options.model), kv_tokens=8192, **settings))
    if loaded.adapters is None:
        parser.error("this model takes no adapters")
    print(f"{loaded.details['tier']}, {options.dtype} {options.quantization}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        folders = {
            f"a{i}": save_adapter(options.model, Path(folder, str(i)), rank=options.rank, seed=i)
            for i in range(max(KINDS))
        }
        loaded.adapters.offer(folders, Bounds(max(KINDS)))
        begin = time.perf_counter()
        for name in folders:
            loaded.adapters.load(name)
        seconds = time.perf_counter() - begin
        print("streams  " + "".join(f"{f'{kind} adapters':>16}" for kind in KINDS))
        for streams in map(int, options.streams.split(",")):
            kinds = [kind for kind in KINDS if kind <= streams]
            found = rates(loaded, streams, kinds, prompt=options.prompt, steps=options.steps)
            cells = "".join(f"{f'{found[kind]:.0f} ({found[kind] / found[0]:.2f})':>16}" for kind in kinds)
            print(f"{streams:7}  {cells}", flush=True)
        size, load = loaded.adapters.nbytes / 1e6, seconds / len(folders) * 1e3
        base = sum(path.stat().st_size for path in options.model.glob("*.safetensors")) / 1e6
        print(
            f"rank {options.rank}, all linear layers: {size / len(folders):.1f} MB each, {size:.1f} MB together beside "
            f"a checkpoint of {base:.0f} MB; loaded in {load:.0f} ms each"
        )
        print_gaps(
            loaded, folders, [int(count) for count in options.readers.split(",")], options.rounds, options.prompt
        )


if __name__ == "__main__":
    main()
