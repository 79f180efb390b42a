"""A gateway without database and engine: principals, a runtime and generations that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from uuid import UUID

from billing.limits.types import BucketState
from billing.rating import CardPrices
from gateway.errors.refusal import Refusal
from gateway.generation.events import Outcome
from gateway.generation.intent import Intent
from gateway.runtime.metrics import Metrics
from gateway.runtime.principal import Principal
from gateway.runtime.refusals import Refusals
from inference.types import Delta, FinishReason, Started, Usage
from routing.catalogue import Catalogue, ModelEntry
from routing.types import Candidate, Route
from tests.gateway.doubles import make_principal

KEY = "sk-sluice-good"
USAGE = Usage(input=5, cache_read=3, output=2)
CHARGE = 1_500_000


def principal(**changes: object) -> Principal:
    ids = {name: UUID(int=number) for number, name in enumerate(("tenant", "project", "wallet", "api_key"), 1)}
    return make_principal(**(ids | changes))


@dataclass
class FakePrincipals:
    """Knows keys and memberships; counts how often it is asked."""

    keys: dict[str, Principal | Refusal] = field(default_factory=lambda: {KEY: principal()})
    members: dict[tuple[UUID, UUID], Principal] = field(default_factory=dict)
    asked: int = 0

    async def by_key(self, secret: str) -> Principal:
        self.asked += 1
        found = self.keys.get(secret, Refusal(401, "invalid_api_key", "This API key is not valid."))
        if isinstance(found, Refusal):
            raise found
        return found

    async def by_session(self, user: UUID, project: UUID) -> Principal:
        self.asked += 1
        found = self.members.get((user, project))
        if found is None:
            raise Refusal(403, "not_a_member", "You have no access to this project.")
        return found


MODELS = {
    "small": ModelEntry("small", frozenset({"chat"}), 2048, "small", "A small model.", 1_700_000_000),
    "org/big": ModelEntry("org/big", frozenset({"chat"}), 8192, "small", "A big model.", 1_700_000_001),
    "embedder": ModelEntry("embedder", frozenset({"embedding"}), 256, "small", "Vectors.", 1_700_000_002),
}
PRICES = CardPrices.build(UUID(int=8), 7, [(0, "input", 1_000_000), (0, "output", 2_000_000)])


class FakeRuntime:
    """What endpoints ask of a runtime."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.refusals = Refusals(None, self.metrics)
        self.principals = FakePrincipals()
        self.snapshot = SimpleNamespace(catalogue=Catalogue(MODELS, {}, ()), prices={"small": PRICES})
        self.checks = {"database": "", "deployments": ""}
        self.threads = SimpleNamespace(run=asyncio.to_thread)
        self.contexts: dict[str, int] = {}
        self.engines = SimpleNamespace(context_of=self.contexts.get)
        self.tasks: set[asyncio.Task[object]] = set()

    async def readiness(self) -> dict[str, str]:
        return self.checks

    def deployments(self) -> dict[str, str]:
        return {"small": "ready"}

    async def drain(self, patience: float) -> bool:
        return True

    async def current_snapshot(self) -> object:
        return self.snapshot

    def supervise(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        return task

    async def settled(self) -> None:
        """Return when all supervised work has ended; raise what it raised."""
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


ROUTE = Route(
    model="small",
    deployment=UUID(int=9),
    deployment_name="small-1",
    rate_card="small",
    context_length=2048,
    task="chat",
    task_source="plan",
    rule="",
    reason="You asked for small.",
    candidates=(Candidate("small", "small-1"),),
)


def done(reason: FinishReason = FinishReason.STOP, **changes: object) -> Outcome:
    base = Outcome(reason, USAGE, CHARGE, available=98_500_000, ttft_ms=12, duration_ms=34)
    return replace(base, **changes)


def hello() -> list[object]:
    return [Started(3), Delta("Hel", Usage(5, 3, 1)), Delta("lo", USAGE), done()]


class FakeGeneration:
    """Plays `script`: events are yielded, asyncio.Events waited for. A client that leaves ends it as cancelled."""

    def __init__(self, request_id: UUID, intent: Intent, script: list[object]) -> None:
        self.id = request_id
        self.intent = intent
        self.created = 1_700_000_000
        self.route = ROUTE
        self.prompt_tokens = 8
        self.rate_states = (BucketState("requests", 10, 9, 100_000),)
        self.left = asyncio.Event()
        self.closed = asyncio.Event()
        self._script = script

    @property
    def ended_at_once(self) -> Outcome | None:
        return self._script[0] if self._script and isinstance(self._script[0], Outcome) else None

    async def events(self) -> AsyncIterator[object]:
        try:
            for item in self._script:
                if isinstance(item, asyncio.Event):
                    if await self._left_before(item):
                        break
                else:
                    yield item
                    if isinstance(item, Outcome):
                        return
            yield done(FinishReason.CANCELLED)
        finally:
            self.closed.set()

    async def _left_before(self, gate: asyncio.Event) -> bool:
        waits = [asyncio.ensure_future(gate.wait()), asyncio.ensure_future(self.left.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return self.left.is_set() and not gate.is_set()

    def client_left(self) -> None:
        self.left.set()

    def charge_so_far(self, usage: Usage) -> int:
        return usage.completion * 1000


class World:
    """The gateway under test: its runtime, what the next generations play, and those that were started."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.script: list[object] | None = None
        self.scripts: list[list[object]] = []
        self.refusal: Refusal | None = None
        self.error: Exception | None = None
        self.begun = asyncio.Event()  # somebody waits for a generation to start
        self.starting: asyncio.Event | None = None  # waited for before a generation is there
        self.generations: list[FakeGeneration] = []
        self.principals: list[Principal] = []
        self.started = asyncio.Condition()

    @property
    def intent(self) -> Intent:
        return self.generations[-1].intent

    async def start(self, runtime, principal, intent, request_id) -> FakeGeneration:
        assert runtime is self.runtime
        self.begun.set()
        if self.starting is not None:
            await self.starting.wait()
        if self.refusal is not None:
            raise self.refusal
        if self.error is not None:
            raise self.error
        script = self.scripts.pop(0) if self.scripts else self.script
        generation = FakeGeneration(request_id, intent, hello() if script is None else script)
        async with self.started:
            self.generations.append(generation)
            self.principals.append(principal)
            self.started.notify_all()
        return generation

    async def generation(self, number: int = 0) -> FakeGeneration:
        """Wait until so many have started and return the last of them."""
        async with self.started:
            await self.started.wait_for(lambda: len(self.generations) > number)
        return self.generations[number]

    def application(self):
        from gateway.asgi import application

        async def with_state(scope, receive, send):
            state = {"runtime": self.runtime}
            await application({**scope, "state": state}, receive, send)

        return with_state
