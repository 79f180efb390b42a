"""Random requests through a whole engine, each held to what it answers alone.

    python -m tests.inference.fuzz --requests 5000

They come in episodes of one engine each with small random bounds, with drafts or with steps that overlap: requests of
several tenants, with one of two adapters or none, that ask for all that sampling offers, with one answer or several,
and share prefixes, cancelled, paused and extended at random; some may wait only so long for the engine. Steps fail, run
out of memory, or fail for one row. After each step `check()` runs. Each answer is what the request gets alone on a
fresh engine with the same adapter, or where it was cut its start: tokens, text, log-probabilities. Nothing comes from
the cache but what was computed in the same domain with the same adapter; what waited too long has used nothing; and the
times of each request add up.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.core.step import RowFailure, StepPlan, StepResult
from inference.errors import OverloadedError
from inference.execution.adapters import Bounds
from inference.execution.backend import LoadedModel, Pending
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import FinishReason, Usage
from tests.inference.adapting import save_adapter
from tests.inference.exactness import overlapping
from tests.inference.random_requests import Told, alone, random_prompt, some_grammars

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
        if any(row.request_id.partition("/")[0] in runner.poison for row in self.plan.rows):
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
    """A request, what it was told in the crowd, and how many tokens it may generate so far.

    It has `begun` with its first forward pass.
    """

    prompt: Prompt
    allowance: int
    told: Told = field(default_factory=Told)
    begun: bool = False
    submitted_at: float | None = None

    @property
    def output(self) -> int:
        """How many tokens its answers have together, as far as they were told."""
        return sum(len(answer.tokens) for answer in self.told.answers.values())

    def check_times(self, now: float) -> None:
        """Raise AssertionError unless the times of the request, which has ended `now`, are those that went by."""
        end, most = self.told.finished, self.prompt.request.queue_seconds
        assert end is not None
        assert self.submitted_at is not None
        about = (self.prompt.request, end)
        times = (end.queued_ms, end.prefill_ms, end.decode_ms)
        assert min(times) >= 0, about
        assert abs(sum(times) - (now - self.submitted_at) * 1000) < 1e-3, about
        if end.error is not None and end.error.code == "queue_timeout":
            assert most, about
            assert not self.begun, about
            assert end.queued_ms >= most * 1000 - 1e-3, about
            assert end.usage == Usage(), about
            assert not self.output, about
        elif most and self.begun:
            assert end.queued_ms < most * 1000, about


@dataclass
class Fuzz:
    """One fuzzed run. `run` returns how the requests ended; what differs raises AssertionError."""

    loaded: LoadedModel
    folders: dict[str, Path]  # of its adapters
    seed: int
    steps: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    now: float = 0.0
    whole: int = 0  # requests that came to their own end
    accepted: int = 0  # drafts
    several: int = 0  # requests with several answers
    cached: int = 0  # prompt tokens that came from the cache
    apart: int = 0  # requests for which other domains and adapters had more in the cache than their own
    crowded: int = 0  # times that a request had to wait for another's adapter to leave memory

    def __post_init__(self) -> None:
        self.grammars = some_grammars(self.loaded.vocab_size)
        assert self.loaded.adapters is not None
        self.adapters = self.loaded.adapters
        self.adapters.clock = lambda: self.now
        self.adapters.offer(self.folders)
        self.names = {self.adapters.load(name): name for name in self.folders}  # by key

    def run(self, requests: int) -> Counter[str]:
        ends: Counter[str] = Counter()
        for first in range(0, requests, EPISODE):
            rng = random.Random(self.seed + first)
            for case in self._episode(rng, min(EPISODE, requests - first)):
                end = case.told.finished
                assert end is not None
                self._compare(case)
                ends[end.error.code if end.error is not None else end.reason.value] += 1
        return ends

    def _compare(self, case: Case) -> None:
        engine, _ = self._engine(self.loaded)
        self._load(case.prompt)
        expected, about = alone(engine, case.prompt), (self.seed, case.prompt, case.told)
        assert expected.finished is not None
        assert expected.finished.error is None, about
        assert case.told.prompt_logprobs == expected.prompt_logprobs[: len(case.told.prompt_logprobs)], about
        end = case.told.finished
        if case.prompt.request.sampling.best_of is not None and end is not None and end.reason not in WHOLE:
            return  # of answers that were cut others are the best
        for index, answer in case.told.answers.items():
            whole = expected.answers[index]
            if answer.ended in WHOLE:
                assert answer == whole, about
            else:
                assert answer.is_start_of(whole), about
        if end is not None and end.reason in WHOLE:
            assert case.told.outcome == expected.outcome, about
            self.whole += 1

    def _episode(self, rng: random.Random, count: int) -> list[Case]:
        overlaps = rng.random() < 0.3
        runner = Faulty(overlapping(self.loaded.runner) if overlaps else self.loaded.runner, rng)
        engine, scheduler = self._engine(
            replace(self.loaded, runner=runner),
            blocks=rng.choice([9, 13, 25, 65]),
            max_rows=rng.choice([1, 2, 2, 4, 9]),
            max_step_tokens=rng.choice([12, 40, 96]),
            prefill_chunk=rng.choice([5, 16, 64]),
            prefix_cache=rng.random() < 0.7,
            speculation=rng.choice([0, 3, 8]),
        )
        self.adapters.offer({})  # so that none is in memory
        engine.offer(self.folders, Bounds(most=rng.choice([1, 1, 2])))
        shared = [rng.randrange(3, self.loaded.vocab_size) for _ in range(40)]
        context = scheduler.config.context
        waiting = [self._case(rng, f"r{number}", context, shared) for number in range(count)]
        cases = {case.prompt.request.id: case for case in waiting}
        self.several += sum(case.prompt.request.sampling.answers > 1 for case in waiting)
        runner.poison = {name for name in cases if rng.random() < 0.03}
        while waiting or engine.unfinished:
            self.now += 0.05
            while waiting and rng.random() < 0.5:
                case = waiting.pop()
                try:
                    self._load(case.prompt)
                    engine.submit(case.prompt, case.allowance, is_final=False)
                except OverloadedError as error:
                    self.crowded += error.code == "adapters_in_use"
                    waiting.insert(0, case)
                    break
                case.submitted_at = self.now
            self._disturb(rng, engine, cases)
            begun: list[str] = []
            outputs = engine.step(begun.extend)
            for name in begun:
                cases[name].begun = True
            for output in outputs:
                case = cases[output.request_id]
                case.told.add(output)
                self.accepted += max(0, len(output.tokens) - 1)
                if output.started is not None:
                    self._check_cached(case, output.started.cached_tokens, cases.values())
                if output.finished is not None:
                    case.check_times(self.now)
            scheduler.check()
        engine.step()  # what was in flight when the last one ended
        self.steps += engine.steps
        self.faults += runner.faults
        self.preemptions += Counter(scheduler.stats().work.preemptions)
        assert scheduler.stats().kv_used == 0.0
        self.adapters.offer({})
        assert not self.adapters.loaded, "an adapter is held, and no request is left"
        self.adapters.offer(self.folders)
        return list(cases.values())

    def _load(self, prompt: Prompt) -> None:
        """Load the adapter of a request; raise OverloadedError when others' take all the room."""
        if prompt.adapter:
            assert self.adapters.load(self.names[prompt.adapter], prompt.request.tenant) == prompt.adapter

    def _check_cached(self, case: Case, cached: int, cases: Iterable[Case]) -> None:
        """Raise AssertionError if more came from the cache than requests of its kind can have left there."""
        alike = others = 0
        for other in cases:
            if other is not case and other.begun:
                shared = _common(case.prompt.ids, other.prompt.ids)
                if _root(other.prompt) == _root(case.prompt):
                    alike = max(alike, shared)
                else:
                    others = max(others, shared)
        size = self.loaded.block_size
        assert cached <= alike // size * size, (case.prompt, cached, alike)
        self.cached += cached
        self.apart += others // size > alike // size

    def _disturb(self, rng: random.Random, engine: LocalEngine, cases: dict[str, Case]) -> None:
        names = list(cases)
        if rng.random() < 0.02:
            engine.cancel(rng.choice(names))
        for name in names:
            case = cases[name]
            # With best_of nothing is told before the end.
            comes_near = case.output >= case.allowance - 3 or case.prompt.request.sampling.best_of is not None
            if case.told.finished is None and comes_near and rng.random() < 0.3:
                case.allowance += rng.randint(1, 9)
                engine.extend(name, case.allowance, is_final=rng.random() < 0.2)

    def _case(self, rng: random.Random, name: str, context: int, shared: list[int]) -> Case:
        prompt = random_prompt(rng, name, self.loaded.vocab_size, context, shared, grammars=self.grammars)
        seconds = rng.choice([0.2, 1.0, 3.0]) if rng.random() < 0.15 else 0.0
        adapter = rng.choice(["", "", "", *self.names])
        prompt = replace(prompt, request=replace(prompt.request, queue_seconds=seconds), adapter=adapter)
        return Case(prompt, rng.choice([1000, 1000, 2, 5]))

    def _engine(self, loaded: LoadedModel, blocks: int | None = None, **bounds: Any) -> tuple[LocalEngine, Scheduler]:
        loaded = replace(loaded, kv_blocks=blocks or loaded.kv_blocks)
        config = EngineConfig("fuzz", "-", block_size=loaded.block_size, **bounds)
        engine = LocalEngine(config, loaded, ByteTokenizer(), secret=b"fuzz", clock=lambda: self.now)
        (scheduler,) = engine.schedulers
        assert isinstance(scheduler, Scheduler)
        return engine, scheduler


def _root(prompt: Prompt) -> tuple[str, str]:
    """Return what must be equal for two requests to share what was computed."""
    return prompt.request.domain, prompt.adapter


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return with how many tokens both begin."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def load(
    folder: Path, family: str = "llama", *, threads: int = 1, dtype: str = "float32", **settings: Any
) -> tuple[LoadedModel, dict[str, Path]]:
    """Return a tiny random model with these settings (fields of `EngineConfig`), and the folders of two adapters of
    it.
    """
    from inference.architectures.load import load_model
    from tests.inference.tiny import save_tiny

    path = save_tiny(family, folder / "tiny", num_hidden_layers=2)
    adapters = {name: save_adapter(path, folder / name, rank=3 + seed, seed=seed) for seed, name in enumerate("ab")}
    config = EngineConfig("fuzz", str(path), dtype=dtype, kv_tokens=2048, **settings)
    return load_model(config, threads=threads), adapters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default="llama", help="one of our own decoder, as in tests/inference/tiny.py")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantization", default="", help="w8a8 or int4")
    parser.add_argument("--kv-dtype", default="auto", help="auto or int8")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # of the steps that fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(
            Path(folder),
            options.family,
            threads=options.threads,
            dtype=options.dtype,
            quantization=options.quantization,
            kv_dtype=options.kv_dtype,
        )
        fuzz = Fuzz(*loaded, options.seed)
        begin = time.perf_counter()
        ends = fuzz.run(options.requests)
    print(f"{options.requests} requests, {fuzz.steps} steps, {time.perf_counter() - begin:.0f} s: all as alone")
    print("ends:", dict(ends), "preempted:", dict(fuzz.preemptions), "faults:", dict(fuzz.faults))
    print(f"{fuzz.whole} whole, {fuzz.several} with several answers, {fuzz.accepted} drafts accepted")
    print(f"{fuzz.cached} tokens from the cache, {fuzz.apart} requests kept from what others had there")
    print(f"{fuzz.crowded} times an adapter waited for room")


if __name__ == "__main__":
    main()
