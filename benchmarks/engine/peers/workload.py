"""The parts of `cpu.py`, for ours and for engines that run in environments of their own: prompts, lengths, rates.

A peer is a program that loads its model, prints "ready", and then answers each line of its standard input, the name
of a part, with "PART: RATE".
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Hashable, Iterable

Job = tuple[list[int], int]  # prompt and how many tokens to generate


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
    "batch 8": [(prompt(128, i), 40) for i in range(8)],
    "batch 32": [(prompt(128, i), 40) for i in range(32)],
    "32 × 2048": [(prompt(2000, i), 320) for i in range(32)],
    "mixed": mixed(),
}
ENOUGH = {"32 × 2048": 16}  # steps with all rows after which a part may end


def measure(part: str, step: Callable[[], Iterable[tuple[Hashable, int]]]) -> float:
    """Run `step` until the part's requests have ended; return tokens per second.

    A step says which requests have new tokens, and how many. Prefill: tokens of the prompt. Mixed: of all output. Else:
    of the steps in which every row decodes, from the one in which the last began to the one in which the first ends.
    """
    jobs = PARTS[part]
    made: dict[Hashable, int] = {}
    ends: list[tuple[float, int]] = []
    total = sum(new for _, new in jobs)
    produced = 0
    begin = time.perf_counter()
    while produced < total:
        for request, count in step():
            made[request] = made.get(request, 0) + count
            produced += count
        now = time.perf_counter() - begin
        if len(made) == len(jobs):
            ends.append((now, produced))
            if jobs[0][1] in made.values() and part.startswith(("batch", "32")):
                break
            if len(ends) > ENOUGH.get(part, 1_000):
                break
    if part.startswith("prefill"):
        return len(jobs[0][0]) / now
    if part == "mixed":
        return total / now
    (first, before), (last, after) = ends[0], ends[-1]
    return (after - before) / (last - first)


def answer(rate: Callable[[str], float]) -> None:
    """Answer the parts that standard input names, until it ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        part = line.strip()
        value = rate(part) if part in PARTS else math.nan
        print(f"{part}: {value:.2f}", flush=True)
