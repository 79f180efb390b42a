"""Random requests through a whole engine, each held to what it answers alone.

    python -m tests.inference.fuzz --requests 5000

They come in episodes of one engine each with small random bounds: requests of several tenants, greedy and seeded, with
shared prefixes, cancelled, paused and extended at random; steps fail, run out of memory, or fail for one row. After
each step `check()` runs; each answer is what the request gets alone on a fresh engine, or where it was cut its start.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.core.step import RowFailure, StepPlan, StepResult
from inference.errors import OverloadedError
from inference.execution.backend import LoadedModel, Pending
from inference.local import LocalEngine
from inference.text.prepare import Prompt
from inference.types import Finished, FinishReason, GenerationRequest, SamplingParams

EPISODE = 40
WHOLE = {FinishReason.LENGTH, FinishReason.STOP}


class Faulty:
    """A runner whose steps fail now and then: as a whole, for want of memory, for one row; and always with `poison`."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self.inner, self.rng = inner, rng
        self.overlaps = inner.overlaps
        self.poison: set[str] = set()
        self.faults: Counter[str] = Counter()

    def launch(self, plan: StepPlan) -> Pending:
        return _Faulty(self, plan, self.inner.launch(plan))


@dataclass
class _Faulty:
    """A step that ran and whose result may be lost."""

    runner: Faulty
    plan: StepPlan
    inner: Pending

    def wait(self) -> StepResult:
        result = self.inner.wait()
        runner, rng = self.runner, self.runner.rng
        if any(row.request_id in runner.poison for row in self.plan.rows):
            runner.faults["poison"] += 1
            raise RuntimeError("poisoned")
        drawn = rng.random()
        if drawn < 0.01:
            runner.faults["step"] += 1
            raise RuntimeError("a step that fails once")
        if drawn < 0.02:
            runner.faults["memory"] += 1
            raise MemoryError("not enough")
        if drawn < 0.03:
            runner.faults["row"] += 1
            failed = rng.randrange(len(self.plan.rows))
            failure = RowFailure("fuzz", "a row that fails")
            return replace(result, rows=(*result.rows[:failed], failure, *result.rows[failed + 1 :]))
        return result


@dataclass
class Case:
    """A request, what it said in the crowd, and how that ended."""

    request: GenerationRequest
    ids: tuple[int, ...]
    tokens: int
    allowance: int
    said: list[int] = field(default_factory=list)
    finished: Finished | None = None


@dataclass
class Fuzz:
    """See the module. `run` returns how the requests ended; what differs raises AssertionError."""

    loaded: LoadedModel
    seed: int
    steps: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    now: float = 0.0

    def run(self, requests: int) -> Counter[str]:
        ends: Counter[str] = Counter()
        for first in range(0, requests, EPISODE):
            rng = random.Random(self.seed + first)
            for case in self._episode(rng, min(EPISODE, requests - first)):
                assert case.finished is not None
                alone = self._alone(case)
                assert case.said == alone[: len(case.said)], (self.seed, case.request.id, case.said, alone)
                if case.finished.reason in WHOLE:
                    assert len(case.said) == len(alone)
                error = case.finished.error
                ends[error.code if error is not None else case.finished.reason.value] += 1
        return ends

    def _episode(self, rng: random.Random, count: int) -> list[Case]:
        runner = Faulty(self.loaded.runner, rng)
        engine, scheduler = self._engine(
            replace(self.loaded, runner=runner),
            blocks=rng.choice([9, 13, 25, 65]),
            max_rows=rng.randint(1, 9),
            max_step_tokens=rng.choice([12, 40, 96]),
            prefill_chunk=rng.choice([5, 16, 64]),
            prefix_cache=rng.random() < 0.7,
            speculation=rng.choice([0, 3, 8]),
        )
        waiting = [self._case(rng, number, scheduler.config.context) for number in range(count)]
        cases = {case.request.id: case for case in waiting}
        runner.poison = {case.request.id for case in waiting if rng.random() < 0.03}
        while waiting or engine.unfinished:
            self.now += 0.05
            while waiting and rng.random() < 0.5:
                case = waiting.pop()
                try:
                    engine.submit(Prompt(case.request, case.tokens, ids=case.ids), case.allowance, is_final=False)
                except OverloadedError:
                    waiting.insert(0, case)
                    break
            self._disturb(rng, engine, cases)
            for output in engine.step():
                case = cases[output.request_id]
                assert case.finished is None
                case.said += output.tokens
                case.finished = output.finished
            scheduler.check()
        self.steps += engine.steps
        self.faults += runner.faults
        self.preemptions += Counter(scheduler.stats().work.preemptions)
        assert scheduler.stats().kv_used == 0.0
        return list(cases.values())

    def _disturb(self, rng: random.Random, engine: LocalEngine, cases: dict[str, Case]) -> None:
        names = list(cases)
        if rng.random() < 0.02:
            engine.cancel(rng.choice(names))
        for name in names:
            case = cases[name]
            if case.finished is None and len(case.said) >= case.allowance and rng.random() < 0.3:
                case.allowance += rng.randint(1, 9)
                engine.extend(name, case.allowance, is_final=rng.random() < 0.2)

    def _case(self, rng: random.Random, number: int, context: int) -> Case:
        tokens = rng.randint(1, 14)
        shared = [3 + index for index in range(rng.choice([0, 0, 16, 40]))]
        own = [rng.randrange(3, self.loaded.vocab_size) for _ in range(rng.randint(1, 24))]
        ids = tuple([*shared, *own][-(context - tokens) :])
        seeded = rng.random() < 0.5
        request = GenerationRequest(
            f"r{number}",
            tenant=rng.choice("abc"),
            domain="d",
            weight=rng.choice([1000, 3000]),
            priority=rng.randint(0, 1),
            sampling=SamplingParams(temperature=rng.choice([0.4, 1.0]) if seeded else 0.0, seed=rng.getrandbits(40)),
        )
        return Case(request, ids, tokens, rng.choice([1000, 1000, 2, 5]))

    def _alone(self, case: Case) -> list[int]:
        engine, _ = self._engine(self.loaded)
        engine.submit(Prompt(case.request, case.tokens, ids=case.ids))
        return list(_tokens(engine))

    def _engine(self, loaded: LoadedModel, blocks: int | None = None, **bounds: Any) -> tuple[LocalEngine, Scheduler]:
        loaded = replace(loaded, kv_blocks=blocks or loaded.kv_blocks)
        config = EngineConfig("fuzz", "-", block_size=loaded.block_size, **bounds)
        engine = LocalEngine(config, loaded, secret=b"fuzz", clock=lambda: self.now)
        (scheduler,) = engine.schedulers
        assert isinstance(scheduler, Scheduler)
        return engine, scheduler


def _tokens(engine: LocalEngine) -> Iterator[int]:
    while engine.unfinished:
        for output in engine.step():
            yield from output.tokens


def load(folder: Path) -> LoadedModel:
    """Return a tiny random model in float32."""
    from inference.architectures.load import load_model
    from tests.inference.tiny import save_tiny

    path = save_tiny("llama", folder / "tiny", num_hidden_layers=2)
    return load_model(EngineConfig("fuzz", str(path), dtype="float32", kv_tokens=2048), threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # of the steps that fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(load(Path(folder)), options.seed)
        begin = time.perf_counter()
        ends = fuzz.run(options.requests)
    print(f"{options.requests} requests, {fuzz.steps} steps, {time.perf_counter() - begin:.0f} s: all as alone")
    print("ends:", dict(ends), "preempted:", dict(fuzz.preemptions), "faults:", dict(fuzz.faults))


if __name__ == "__main__":
    main()
