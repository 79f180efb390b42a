"""Many tenants on one imagined machine: what each waits for its first token, in seconds of the machine's own clock.

The scheduler is the real one; a step costs what `Machine` says. `benchmarks/engine/fairness.py` prints these runs,
`test_crowd.py` holds them to their bounds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import count

from inference.core.resident import Cause
from tests.inference.core.machine import Fabricated, Machine, MachineBench

CPU = Machine(base=0.040, row=0.0020, context=1e-7, token=1.1e-3, pair=6e-8)  # 0.6B parameters on two cores
PROMPT, ANSWER = 1000, 64
SMALL_PROMPT, SMALL_ANSWER = 24, 8


@dataclass(frozen=True)
class Waits:
    """Seconds from each request's arrival to its first token, in the order of arrival."""

    seconds: list[float]
    preempted: int = 0  # rows taken from one tenant for another

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def last(self) -> float:
        return max(self.seconds)


class Crowd:
    """A bench with room for `tenants` tenants whose requests are `prompt` and `answer` tokens long."""

    def __init__(self, machine: Machine, tenants: int, *, prompt: int = PROMPT, answer: int = ANSWER) -> None:
        self.prompt, self.answer = prompt, answer
        self.bench = MachineBench(
            machine,
            blocks=4096 + 32 * (prompt + answer) // 16,
            block_size=16,
            max_context=2 * (prompt + answer) + 64,
            max_rows=32,
            max_step_tokens=512,
            prefill_chunk=256,
            max_waiting=10_000,
            max_waiting_per_tenant=10_000,
        )
        self.bench.memory = Fabricated()  # type: ignore[assignment]
        self.check, self.bench.scheduler.check = self.bench.scheduler.check, lambda: None  # type: ignore[method-assign]
        self.arrived: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self._numbers = count()

    def submit(self, tenant: str, prompt: int, answer: int) -> str:
        """Submit a request with a prompt that no other shares; return its name."""
        number = next(self._numbers)
        name = f"{tenant}-{number}"
        ids = [number % 89, number // 89 % 89, number // 89**2, *(i % 89 for i in range(prompt - 3))]
        self.arrived[name] = self.bench.now
        self.bench.submit(name, ids, answer, tenant=tenant)
        return name

    def step(self) -> None:
        assert self.bench.step() is not None
        for name in self.arrived.keys() - self.first.keys():
            if self.bench.stories[name].tokens:
                self.first[name] = self.bench.now
        if not self.bench.scheduler.steps % 100:
            self.check()

    def waits(self, names: list[str]) -> Waits:
        preempted = self.bench.scheduler._residents.preemptions[Cause.FAIRNESS]
        return Waits([self.first[name] - self.arrived[name] for name in names], preempted)


def equal_tenants(machine: Machine, tenants: int, *, is_fair: bool, prompt: int = PROMPT) -> Waits:
    """Let each of `tenants` send one equal request at once; not `is_fair`: one tenant sends all of them."""
    crowd = Crowd(machine, tenants, prompt=prompt)
    names = [crowd.submit(f"t{number}" if is_fair else "all", prompt, ANSWER) for number in range(tenants)]
    while crowd.bench.scheduler.unfinished:
        crowd.step()
    return crowd.waits(names)


def small_beside(
    machine: Machine, tenants: int, *, prompt: int = PROMPT, answer: int = ANSWER, small: int = 20, pause: float = 5.0
) -> Waits:
    """Let another idle tenant send a small request each `pause` seconds, beside tenants that always have one."""
    crowd = Crowd(machine, tenants, prompt=prompt, answer=answer)
    bench = crowd.bench
    busy = {crowd.submit(f"t{number}", prompt, answer): f"t{number}" for number in range(tenants)}

    coming = (pause * (1 + number) for number in range(small))
    names: list[str] = []
    due = next(coming, None)
    while due is not None or any(name not in crowd.first for name in names):
        while due is not None and due <= bench.now:
            names.append(crowd.submit(f"small{len(names)}", SMALL_PROMPT, SMALL_ANSWER))
            crowd.arrived[names[-1]] = due  # while a step ran
            due = next(coming, None)
        crowd.step()
        for name in [name for name in busy if bench.stories[name].finished]:
            tenant = busy.pop(name)
            busy[crowd.submit(tenant, prompt, answer)] = tenant
    return crowd.waits(names)


def behind(machine: Machine, first: int, then: int) -> float:
    """Return what a prompt of `then` tokens waits that comes a second after another tenant's of `first` tokens."""
    crowd = Crowd(machine, 2, prompt=max(first, then))
    crowd.submit("first", first, 1)
    while crowd.bench.now < 1 and crowd.bench.scheduler.unfinished:
        crowd.step()
    name = crowd.submit("then", then, 1)
    while name not in crowd.first:
        crowd.step()
    return crowd.waits([name]).mean


def overrun(machine: Machine, *, is_fair: bool, every: float = 0.1, seconds: float = 60.0) -> int:
    """Return how many answers end while more come than can be served, each of another tenant; not `is_fair`: of one."""
    crowd = Crowd(machine, 1, prompt=60, answer=100)
    due, names = 0.0, list[str]()
    while crowd.bench.now < seconds:
        while due <= crowd.bench.now:
            names.append(crowd.submit(f"t{len(names)}" if is_fair else "all", 60, 100))
            due += every
        crowd.step()
    return sum(bool(crowd.bench.stories[name].finished) for name in names)
