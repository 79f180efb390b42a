"""A scheduler with a clock that tests turn and a model that remembers what was written to its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from inference.core.config import SchedulerConfig
from inference.core.output import Output
from inference.core.prefix import PrefixKeys
from inference.core.rows import Drafting
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.core.step import Row, RowFailure, RowResult, StepPlan, StepResult
from inference.types import Finished, SamplingParams

VOCABULARY = 97


def next_token(tokens: Iterable[int]) -> int:
    """Return the model's next token, which depends on each of `tokens`."""
    digest = blake2b(repr(tuple(tokens)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def continuation(prompt: Iterable[int], count: int) -> list[int]:
    """The first `count` tokens of a generation that nothing disturbs."""
    tokens = list(prompt)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[start:]


class Memory:
    """A model whose KV cache is the tokens themselves, so a wrong block or a stale one gives a wrong token."""

    def __init__(self, block_size: int, *, is_seeded: bool = False) -> None:
        self.block_size = block_size
        self.is_seeded = is_seeded  # a token depends on the row's seed too
        self.cells: dict[tuple[int, int], int] = {}
        self.poison: set[str] = set()  # requests whose presence fails the whole step
        self.bad: set[str] = set()  # requests whose row fails alone
        self.last: dict[int, int] = {}  # the newest token of each slot

    def run(self, plan: StepPlan) -> StepResult:
        poisoned = any(row.request_id in self.poison for row in plan.rows)
        for row in plan.rows:
            ids = (self.last.get(row.slot, 0), *row.ids) if row.follows else row.ids
            for position, token in enumerate(ids, start=row.start):
                block = row.blocks[position // self.block_size]
                assert block != 0, "the null block was written"
                # A step that fails may leave anything behind.
                self.cells[block, position % self.block_size] = -1 if poisoned else token
        if poisoned:
            raise RuntimeError("poisoned step")
        answers: list[RowResult | RowFailure] = []
        for row in plan.rows:
            if row.request_id in self.bad:
                answers.append(RowFailure("bad_row", "not finite"))
            else:
                answers.append(RowResult(self.sample(row) if row.samples else ()))
        return StepResult(tuple(answers))

    def sample(self, row: Row) -> tuple[int, ...]:
        end = row.start + row.count
        cells = [
            self.cells[row.blocks[position // self.block_size], position % self.block_size] for position in range(end)
        ]
        seeded = [row.seed] if self.is_seeded else []
        known = end - row.drafts
        tokens = [next_token(cells[:known] + seeded)]
        while known < end and tokens[-1] == cells[known]:
            known += 1
            tokens.append(next_token(cells[:known] + seeded))
        self.last[row.slot] = tokens[-1]
        return tuple(tokens)


@dataclass
class Story:
    """The outputs of one request."""

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)


class Bench:
    """A scheduler, its model and its clock; `check()` runs after everything."""

    def __init__(self, *, drafting: Drafting | None = None, **bounds: object) -> None:
        settings: dict[str, object] = {
            "blocks": 17,
            "block_size": 4,
            "max_context": 64,
            "vocab_size": VOCABULARY,
            "max_rows": 4,
            "max_step_tokens": 16,
            "prefill_chunk": 8,
        }
        self.config = SchedulerConfig(**{**settings, **bounds})  # type: ignore[arg-type]
        self.now = 0.0
        keys = PrefixKeys(b"secret", model="model", dtype="float32", block_size=self.config.block_size)
        self.scheduler = Scheduler(self.config, keys, lambda: self.now, drafting=drafting)
        self.memory = Memory(self.config.block_size)
        self.stories: dict[str, Story] = {}
        self.begun: list[str] = []
        self.plans: list[StepPlan] = []

    def submit(
        self,
        request_id: str,
        prompt: Iterable[int] | int = 6,
        max_output: int = 4,
        *,
        tenant: str = "a",
        allowance: int = 1000,
        is_final: bool = False,
        weight: int = 1000,
        band: int = 0,
        priority: int = 0,
        queue_seconds: float = 0.0,
        sampling: SamplingParams | None = None,
        domain: str | None = None,
        adapter: str = "",
    ) -> Sequence:
        ids = tuple(range(prompt)) if isinstance(prompt, int) else tuple(prompt)
        seq = Sequence(
            request_id=request_id,
            tenant=tenant,
            domain=domain if domain is not None else tenant,
            prompt=ids,
            max_output=max_output,
            allowance=allowance,
            is_final=is_final,
            weight=weight,
            band=band,
            priority=priority,
            queue_seconds=queue_seconds,
            sampling=sampling or SamplingParams(),
            adapter=adapter,
        )
        self.scheduler.submit(seq)
        self.scheduler.check()
        self.stories[request_id] = Story(prompt=ids)
        return seq

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        self.scheduler.check()
        if plan is not None:
            self.plans.append(plan)
            self.begun += plan.begins
            assert {row.request_id for row in plan.rows} <= set(self.begun), "a row ran before it was begun"
        self.listen(self.scheduler.take_outputs())
        return plan

    def finish(self, plan: StepPlan) -> None:
        """Run and commit (or abandon) `plan`."""
        try:
            result = self.memory.run(plan)
        except RuntimeError as error:
            self.listen(self.scheduler.abandon(plan, error))
        else:
            self.listen(self.scheduler.commit(plan, result))
        self.scheduler.check()

    def step(self) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.finish(plan)
        return plan

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 2000) -> None:
        """Step until nothing is to be done, or `until` holds."""
        for _ in range(limit):
            if until() or self.step() is None:
                return
        raise AssertionError("the scheduler doesn't come to an end")

    def listen(self, outputs: list[Output]) -> None:
        for output in outputs:
            story = self.stories[output.request_id]
            assert not story.finished, "something was said after the last word"
            if output.started is not None:
                story.started.append(output.started.cached_tokens)
                assert len(story.started) == 1
            assert not output.tokens or story.started
            story.tokens += output.tokens
            assert min(output.usage.input, output.usage.cache_read) >= 0
            if output.finished is not None:
                story.finished.append(output.finished)
                assert output.finished.usage == output.usage

    def end(self, request_id: str) -> Finished:
        (finished,) = self.stories[request_id].finished
        return finished

    @property
    def pool(self):
        return self.scheduler._residents.pool
