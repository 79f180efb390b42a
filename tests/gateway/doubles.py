"""A runtime in memory: the writer's own `decide` over values in a dictionary, fake engines, an epoch that stands."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

from base.ids import uuid7
from billing.limits.memory import MemoryRateStore
from billing.limits.types import Bucket
from billing.rating import CardPrices
from billing.selectors.usage import Lengths
from billing.writer.decide import decide
from billing.writer.operations import Release, Renew, Reserve, Settle
from billing.writer.view import HoldRow, View, WalletRow
from gateway.concurrency import ConcurrencyLimiter
from gateway.durable.delivery import Outcome
from gateway.generation.intent import Intent
from gateway.runtime.catalogue import Snapshot
from gateway.runtime.engines import FAILURES, Engines
from gateway.runtime.epoch import Epoch, Reading, Stamp
from gateway.runtime.lengths import Usual
from gateway.runtime.metrics import Metrics
from gateway.runtime.principals import Principal, Principals
from gateway.runtime.refusals import Refusals
from gateway.runtime.requests import Requests
from gateway.runtime.runtime import Parts, Runtime
from inference.messages import Message
from inference.types import Delta, Kind, SamplingParams
from routing.catalogue import Catalogue, DeploymentEntry, ModelEntry, NodeEntry, ReplicaEntry
from tenancy.services.scopes import ALL, expanded
from tests.waiting import until

CARD = CardPrices.build(
    uuid7(),
    0,
    [(0, "input", 10_000_000), (0, "cache_read", 1_000_000), (0, "output", 40_000_000)],
)
"""10 µcr per input token, 1 per cached, 40 per output token."""

PROMPT = "x" * 384  # 100 tokens of the fake engine: four characters each, and four for the message


class MemoryWriter:
    """The writer's decisions without a database; `before` may be set to delay or fail an operation."""

    def __init__(self, wallet: UUID, credit: int) -> None:
        self.wallet = WalletRow(wallet, credit, 0, 0, True, None)
        self.holds: dict[UUID, HoldRow] = {}
        self.charges: dict[UUID, int] = {}
        self.operations: list[object] = []
        self.before = None
        self.oldest_age = 0.0
        self.waiting = 0
        self.closed = False

    async def submit(self, operation, seconds=None):
        async with asyncio.timeout(seconds):
            return await self._submit(operation)

    async def _submit(self, operation):
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(operation)
        self.operations.append(operation)
        view = View(datetime.now(UTC), {self.wallet.id: self.wallet}, self.holds, {}, self.charges)
        [answer], _ = decide([operation], view)
        return answer

    async def close(self):
        self.closed = True

    def of(self, kind):
        return [operation for operation in self.operations if isinstance(operation, kind)]

    @property
    def reserves(self):
        return self.of(Reserve)

    @property
    def settles(self):
        return self.of(Settle)

    @property
    def releases(self):
        return self.of(Release)

    @property
    def renews(self):
        return self.of(Renew)


def break_circuit(breaker, failures=FAILURES):
    """Have so many requests fail, each of another tenant."""
    for _ in range(failures):
        breaker.failed(breaker.enter(uuid7()))


def make_principal(wallet=None, **terms):
    tenant = terms.pop("tenant", None) or uuid7()
    defaults = {
        "tenant": tenant,
        "project": uuid7(),
        "wallet": wallet or uuid7(),
        "api_key": uuid7(),
        "user": None,
        "scopes": expanded([ALL]),
        "expires_at": None,
        "plan": "business",
        "multiplier_bp": 10_000,
        "weight": 1000,
        "priority": 0,
        "concurrency": 4,
        "slice_tokens": 16,
        "resume_s": 60,
        "allowed_models": frozenset(),
        "default_task": "chat",
        "response_storage": "on_request",
        "leaves_out_hosted": False,
        "request_bucket": Bucket(f"{{{tenant}}}:requests", "requests", 60, 60_000_000, 60),
        "stamp": Stamp(1),
        "credit_bucket": Bucket(f"{{{tenant}}}:credits", "credits", 10_000_000, 60_000_000, 10_000_000),
    }
    return Principal(**(defaults | terms))


FAKE = ModelEntry("fake", frozenset({"chat", "embedding"}), 8192, "fake-card", "", 0)


def make_deployment(model, name="", replicas=1, weight=1, **options):
    """A deployment of `model` with fake engines on as many nodes, called n1 and so on."""
    return DeploymentEntry(
        uuid4(),
        name or f"{model.name}-1",
        model.name,
        "fake",
        "",
        {"max_context": model.context_length} | options,
        weight=weight,
        replicas=tuple(ReplicaEntry(uuid4(), NodeEntry(f"n{number + 1}")) for number in range(replicas)),
    )


def make_catalogue(*models, rules=(), replicas=1, **options):
    """A catalogue of `models` (one that is called "fake"), each with fake engines of these `options`."""
    models = models or (FAKE,)
    deployments = {model.name: (make_deployment(model, replicas=replicas, **options),) for model in models}
    return Catalogue({model.name: model for model in models}, deployments, tuple(rules))


class WatchedRequests(Requests):
    """Requests that remember the generations and the work they were given."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.generations = []
        self.supervised = []
        self.more_generations = asyncio.Event()

    def entered(self, generation):
        self.generations.append(generation)
        self.more_generations.set()
        super().entered(generation)

    def supervise(self, work):
        self.supervised.append(super().supervise(work))
        return self.supervised[-1]


class Stand:
    """A runtime with one tenant and fake engines for each model, and what tests look at."""

    def __init__(self, runtime, writer, principal):
        self.runtime = runtime
        self.writer = writer
        self.principal = principal

    @property
    def engine(self):
        """The first model's first engine."""
        return self.engine_of(next(iter(self.runtime.catalogue.snapshot.catalogue.models)))

    def engine_of(self, model, number=0):
        [deployment] = self.runtime.catalogue.snapshot.catalogue.deployments[model]
        return self.runtime.engines.get(deployment.replicas[number].id)

    @property
    def record(self):
        return self.engine.record

    async def generation(self, number=0):
        """Wait until so many have begun, and return the last of them."""
        while len(self.runtime.requests.generations) <= number:
            self.runtime.requests.more_generations.clear()
            await self.runtime.requests.more_generations.wait()
        return self.runtime.requests.generations[number]

    def places(self):
        """How many concurrency places are held."""
        return sum(len(holders) for holders in self.runtime.rates._leases.values())

    async def settled(self):
        """Return when nothing runs any more."""
        await until(lambda: not (self.runtime.requests._tasks or self.runtime.requests.live))


class MemoryLengths:
    """Everybody's answers have two tokens or four."""

    async def of(self, tenant, model):
        return Usual(Lengths(50, 2, 4), "own")


class StandingEpoch(Epoch):
    """An epoch that is always fresh and moves only when told to."""

    def __init__(self, value=1):
        super().__init__()
        self.publish(Reading(value), time.monotonic())

    @property
    def is_fresh(self):
        return True


async def make_stand(
    *, credit=1_000_000, terms=None, card=CARD, clock=None, models=(), principals=None, threads=None, **options
):
    principal = make_principal(**(terms or {}))
    writer = MemoryWriter(principal.wallet, credit)
    metrics = Metrics()
    engines = Engines(metrics)
    catalogue = make_catalogue(*models, **options)
    engines.follow(catalogue.all_deployments())
    await engines.look()
    cards = {model.rate_card: card for model in catalogue.models.values()}
    snapshot = Snapshot(1, catalogue, cards, {"Business": frozenset(), "Free": frozenset({"fake"})})
    rates = MemoryRateStore(clock) if clock else MemoryRateStore(lambda: 1_000_000)
    epoch = StandingEpoch()
    parts = Parts(
        writer=writer,
        rates=rates,
        engines=engines,
        epoch=epoch,
        principals=principals or Principals(epoch, threads, rates),
        threads=threads,
        own_threads=None,
        metrics=metrics,
        requests=WatchedRequests(ConcurrencyLimiter(), Refusals(None, metrics), metrics),
    )
    runtime = Runtime(parts, snapshot)
    runtime.lengths = MemoryLengths()
    return Stand(runtime, writer, principal)


def make_intent(max_tokens=None, prompt=PROMPT, **fields):
    sampling = fields.pop("sampling", SamplingParams(max_tokens=max_tokens))
    defaults = {"endpoint": "chat.completions", "kind": Kind.CHAT, "model": "fake", "stream": True}
    return Intent(**(defaults | {"messages": (Message("user", (prompt,)),), "sampling": sampling} | fields))


async def collect(generation):
    """Return (events before the end, outcome, text)."""
    events = [event async for event in generation.events()]
    *before, outcome = events
    assert isinstance(outcome, Outcome)
    return before, outcome, "".join(event.text for event in before if isinstance(event, Delta))
