"""Tenants whose requests go through the real admission, meter, holds and writer, while a clock of their own goes on."""

from __future__ import annotations

import asyncio
import calendar
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from base.ids import uuid7
from billing.models import Plan
from billing.services import cards, plans, wallets
from gateway import bootstrap
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal
from gateway.generation import credit, settlement
from gateway.generation.generation import Generation, start_generation
from gateway.generation.leases import Leases
from gateway.runtime import catalogue as catalogue_module
from gateway.runtime import engines
from gateway.runtime.epoch import EpochPoller
from gateway.runtime.principals import Principal
from inference.clients import fake
from inference.clients.remote import engine as remote_engine
from inference.clients.remote import run as remote_run
from inference.messages import Message
from inference.types import SamplingParams
from routing.models import PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tenancy.models import CatalogueEpoch, Project, Tenant
from tenancy.services import keys
from tests.billing.conftest import MovedClock
from tests.billing.writer.world import patient
from tests.gateway.doubles import make_intent
from tests.gateway.generation.torture.engines import Liar, Script, Scripts, gated
from tests.gateway.generation.torture.prices import TABLE, Card
from tests.gateway.world import in_database, opened
from tests.upstream import prompt_of, serving
from tests.waiting import LONGEST, until

START = datetime(2030, 1, 30, 12, tzinfo=UTC)
MOST = 10**18  # µcr that a plan lets through at once: its rates limit nothing here
OWN = {
    "own": {"echo": True, "thinks": True},
    "cached": {"echo": True, "cached": 0.5, "tokens_per_delta": 3},
    "lost": {"echo": True, "lose_at": 6},
    "broken": {"echo": True, "error_at": 4},
    "busy": {"echo": True, "generate_error": "overloaded"},
}
MOST_OUTPUT = 600
LONG = 3_600.0  # seconds of nobody's clock: what stops here waits for the test
FOREIGN = {"exact": "vllm", "guessed": "generic"}
PLANS: dict[str, dict[str, Any]] = {
    "small": {"monthly_credits": 4_000, "slice_tokens": 4},
    "large": {"monthly_credits": 90_000, "slice_tokens": 16, "multiplier_bp": 33_333},
    "lent": {"monthly_credits": 20_000, "slice_tokens": 7, "overage": "overdraft", "overdraft_limit": 9_000},
    "bare": {"monthly_credits": 0, "slice_tokens": 64, "multiplier_bp": 1},
}
MONTHS = ((timedelta(days=1, hours=11, minutes=59, seconds=50), "UTC"), (timedelta(), "Europe/Berlin"))
_patience: ContextVar[float] = ContextVar("patience", default=0.0)


@dataclass
class Contract:
    """What a tenant has subscribed to, as the test knows it."""

    plan: str
    anchor: datetime
    zone: str
    next_plan: str = ""
    is_ending: bool = False

    def boundary(self, months: int) -> datetime:
        """Return when the month begins whose number that is, from the anchor on."""
        local = self.anchor.astimezone(ZoneInfo(self.zone))
        year, month = divmod(local.year * 12 + local.month - 1 + months, 12)
        day = min(local.day, calendar.monthrange(year, month + 1)[1])
        return local.replace(year=year, month=month + 1, day=day, fold=0).astimezone(UTC)

    def ends(self) -> Iterator[datetime]:
        """Yield the ends of its months."""
        months = 1
        while True:
            yield self.boundary(months)
            months += 1


@dataclass
class Key:
    id: UUID
    secret: str
    limited_since: datetime | None = None
    limits: dict[str, int | None] = field(default_factory=dict)


@dataclass
class Customer:
    """A tenant, with the months' credit that it should have got: when each began, and how much."""

    tenant: Tenant
    project: Project
    wallet: UUID
    keys: list[Key]
    contract: Contract | None
    months: list[tuple[datetime, int]] = field(default_factory=list)
    is_frozen: bool = False


@dataclass(eq=False)
class Asked:
    """One request, from when it was asked."""

    number: int
    id: UUID
    customer: Customer
    key: Key
    script: Script
    model: str
    words: int
    most: int | None
    is_batch: bool
    is_patient: bool
    card: Card
    multiplier_bp: int = 10_000
    task: asyncio.Task[None] | None = None
    generation: Generation | None = None
    refusal: Refusal | None = None
    outcome: Outcome | None = None
    has_left: bool = False

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def end(self) -> str:
        """How it ended, in a word."""
        if self.refusal is not None:
            return self.refusal.code
        assert self.outcome is not None, "it is over"
        error = self.outcome.error
        return self.outcome.sluice_reason or (error.code if error is not None else self.outcome.reason.value)

    @property
    def text(self) -> str:
        words = ["word"] * self.words
        if self.model == "own" and self.script.thought:
            words = ["<think>", *words[: self.script.thought], "</think>", *words[self.script.thought :]]
        return " ".join([f"n{self.number}", *words])

    @property
    def prompt(self) -> int:
        """Tokens of the prompt: as they are counted or, where they are guessed, as credit is held for them."""
        if self.model == "guessed":
            return ceil(Fraction(21, 20) * (ceil(Fraction(len(self.text), 3)) + 2 * 8 + 128))
        return prompt_of([{"content": self.text}]) if self.model in FOREIGN else 4 + len(self.text.split())

    def dearest(self, output: int) -> int:
        """Return the most that it may cost with so many tokens of output."""
        return self.card.dearest(self.prompt, output, self.multiplier_bp, is_longest=self.model in FOREIGN)

    @property
    def least(self) -> int:
        """The µcr without which it can't begin."""
        return self.dearest(1)

    def wanted(self, freed: int) -> int:
        """Return the µcr without which it doesn't begin, if there are `freed` once others give back what they hold: all
        that it may cost where nothing can be held later, if there will be as much.
        """
        whole = self.dearest(min(self.most or MOST_OUTPUT, MOST_OUTPUT)) if self.model in FOREIGN else self.least
        return whole if whole <= freed else self.least

    def __str__(self) -> str:
        kind = " ".join([self.model, *(["batch"] if self.is_batch else []), *(["patient"] if self.is_patient else [])])
        return f"{self.number} of {self.customer.tenant}: {kind}, {self.words} words, most {self.most}, {self.script}"


class Bench:
    """The runtime under torture, and what was done to it."""

    def __init__(self, runtime, poller: EpochPoller, scripts: Scripts, moved: MovedClock, make: World) -> None:
        self.runtime, self.poller, self.scripts, self._moved = runtime, poller, scripts, moved
        self.customers, self.versions = make.customers, make.versions
        self.now, self.renewed_at = make.now, make.now
        self.requests: list[Asked] = []
        self.leases = Leases(runtime.requests, runtime.writer)

    # -- time -------------------------------------------------------------------------------------------------------

    async def at(self, moment: datetime) -> None:
        """Let it be `moment` by the database's clock, for every process at once."""
        self.now = moment
        self._moved.set(moment)
        for customer in self.customers:
            begin_months(customer, moment)
        await self.caught_up()

    async def caught_up(self) -> None:
        """Return when the gateway has heard of all that has changed."""
        epoch, sequence = await in_database(lambda: CatalogueEpoch.objects.values_list("epoch", "sequence").get(id=1))
        self.poller.look()
        known = self.runtime.catalogue.epoch

        def is_so() -> bool:
            stamp = known._stamp
            has_heard = (stamp.epoch, stamp.sequence) >= (epoch, sequence) and known.now >= self.now
            return has_heard and self.runtime.catalogue.snapshot.epoch >= epoch and not self.runtime.catalogue.is_old

        await until(is_so)

    async def renew(self) -> None:
        if self.runtime.requests.live:
            await self.leases.renew()
        self.renewed_at = self.now

    @property
    def midnight(self) -> datetime:
        return self.now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)

    @property
    def month_end(self) -> datetime:
        """When the next month of any customer ends."""
        contracts = [one.contract for one in self.customers if one.contract is not None]
        ends = (next(end for end in one.ends() if end > self.now) for one in contracts)
        return min(ends, default=self.now + timedelta(days=31))

    # -- requests ---------------------------------------------------------------------------------------------------

    def engine(self, model: str) -> Any:
        [deployment] = self.runtime.catalogue.snapshot.catalogue.deployments[model]
        return self.runtime.engines.get(deployment.id)

    @property
    def running(self) -> list[Asked]:
        return [one for one in self.requests if not one.is_over]

    @property
    def stopped(self) -> list[Asked]:
        """Those that wait until they are let go on."""
        return [one for one in self.running if one.number in self.scripts.waiting]

    def ask(self, request: Asked) -> None:
        self.requests.append(request)
        self.scripts.by_number[request.number] = request.script
        request.task = asyncio.ensure_future(self._run(request))

    async def _run(self, request: Asked) -> None:
        _patience.set(1e6 if request.is_patient else 0.0)
        intent = make_intent(
            model=request.model,
            messages=(Message("user", (request.text,)),),
            sampling=SamplingParams(max_tokens=request.most),
            stream=request.number % 3 != 0,
        )
        try:
            principal: Principal = await self.runtime.principals.by_key(request.key.secret)
            request.multiplier_bp = request.card.multiplier(principal.multiplier_bp, is_batch=request.is_batch)
            if request.is_batch:
                principal = principal.for_batch(uuid7(), 64)
            request.generation = await start_generation(self.runtime, principal, intent, request.id)
            async for event in request.generation.events():
                if isinstance(event, Outcome):
                    request.outcome = event
        except Refusal as refusal:
            request.refusal = refusal

    async def quiet(self, may_wait: Callable[[list[Asked]], Any]) -> None:
        """Return when each request is over, or stopped, or waits for credit that others of its tenant hold: those that
        wait are as `may_wait` says, which raises nothing while they rightly do.
        """
        async with asyncio.timeout(LONGEST):
            while True:
                await until(lambda: all(self._is_still(one) for one in self.running))
                waiting = [one for one in self.running if one.number not in self.scripts.waiting]
                if not waiting or await may_wait(waiting):
                    return
                for key in self._queues_of(waiting[0].customer):
                    self.runtime.requests.turns.wake(key)
                await asyncio.sleep(0)

    def _is_still(self, request: Asked) -> bool:
        if request.is_over:
            return True
        if request.number in self.scripts.waiting:
            return not request.has_left  # it is about to end
        queues = self.runtime.requests.turns._queues
        waiting = sum(len(queues[key]) for key in self._queues_of(request.customer))
        mine = [one for one in self.running if one.customer is request.customer and one.is_patient]
        return request.is_patient and waiting == sum(one.number not in self.scripts.waiting for one in mine)

    def _queues_of(self, customer: Customer) -> list[str]:
        return [key for key in self.runtime.requests.turns._queues if key.startswith(f"credit:{customer.wallet}")]


# -- what the database has at first -----------------------------------------------------------------------------------


@dataclass
class World:
    customers: list[Customer]
    versions: dict[str, list[Card]]  # by model
    now: datetime = START


def begin_months(customer: Customer, now: datetime) -> None:
    """Note the months that have begun of what the customer has subscribed to."""
    while (contract := customer.contract) is not None:
        begun = customer.months[-1][0]
        end = next(end for end in contract.ends() if end > begun)
        if end > now:
            return
        if contract.is_ending:
            customer.contract = None
            return
        if contract.next_plan:
            contract.plan, contract.next_plan = contract.next_plan, ""
        customer.months.append((end, PLANS[contract.plan]["monthly_credits"]))


def make_world(addresses: dict[str, tuple[str, dict[str, Any]]], customers: int = 3) -> World:
    """Make plans, models at odd prices, and customers; `addresses` are the foreign servers with their options."""
    wallets.ensure_operator_accounts()
    limits = dict.fromkeys(("request_limit", "request_burst", "credit_limit", "credit_burst"), MOST)
    for slug, terms in PLANS.items():
        plans.publish_version(Plan.objects.create(slug=slug, name=slug), **limits, concurrency=64, **terms)
    versions: dict[str, list[Card]] = {}
    for name, options in OWN.items():
        shape = {"prompt_rule": "words", "pause_seconds": 30.0, "prepared_seconds": LONG}
        add_model(
            name=name, kinds=["chat"], context_length=8192, rate_card=name, source="", backend="fake",
            options=shape | options,
        )  # fmt: skip
    for name, (address, options) in addresses.items():
        add_model(
            name=name, kinds=["chat"], context_length=8192, rate_card=name, source=address, backend="openai",
            options=options,
        )  # fmt: skip
    for name in (*OWN, *addresses):
        versions[name] = [publish(name, TABLE["plain"], START)]
    rule = RouteRule.objects.create(name="whichever")
    for name, is_fallback in (("busy", False), ("own", True)):
        RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name=name), is_fallback=is_fallback)
    versions["auto"] = versions["busy"]
    return World([_make_customer(number) for number in range(customers)], versions)


def _make_customer(number: int) -> Customer:
    tenant = Tenant.objects.create(name=f"Tenant {number}", slug=f"tenant-{number}")
    project = Project.objects.create(tenant=tenant, name="Default")
    wallet = wallets.open_wallet(tenant_id=tenant.pk)
    after, zone = MONTHS[number % 2]
    plan = ("small", "lent", "large")[number % 3]
    anchor = START + after - timedelta(days=31)
    plans.subscribe(tenant.pk, plan, anchor, time_zone=zone)
    made = [keys.create_key(tenant=tenant, project=project, name=name) for name in ("first", "second")]
    contract = Contract(plan, anchor, zone)
    begun = max(begin for begin in map(contract.boundary, range(2)) if begin <= START)
    months = [(begun, PLANS[plan]["monthly_credits"])]
    return Customer(tenant, project, wallet.pk, [Key(key.pk, secret) for key, secret in made], contract, months)


def publish(name: str, card: Card, since: datetime) -> Card:
    """Publish the card's next version, in force from `since` on, and return it."""
    made = cards.publish(name, card.tiers, since, request_fee=card.fee, batch_bp=card.batch_bp)
    return Card(card.tiers, card.fee, card.batch_bp, since, made.pk)


@asynccontextmanager
async def opened_bench(home, monkeypatch):
    """Open a runtime over a new world whose waits for what nobody does here are short, and patient where machines are
    slow.
    """
    scripts, moved, pollers = Scripts(), MovedClock(monkeypatch), []
    moved.set(START)

    def watched(*given: Any) -> EpochPoller:
        pollers.append(EpochPoller(*given))
        return pollers[-1]

    monkeypatch.setattr(bootstrap, "EpochPoller", watched)
    monkeypatch.setattr(fake, "FakeEngine", gated(scripts))
    monkeypatch.setattr(Leases, "fence", lambda _: None)  # the leases are of the test's clock, the fence is of another
    monkeypatch.setattr(remote_engine, "PREPARED_SECONDS", LONG)
    monkeypatch.setattr(remote_run, "USAGE_SECONDS", 0.05)
    monkeypatch.setattr(credit, "HELD_SECONDS", 0.05)
    monkeypatch.setattr(credit, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(settlement, "SETTLE_SECONDS", 60.0)
    monkeypatch.setattr(catalogue_module, "SNAPSHOT_SECONDS", 60.0)
    monkeypatch.setattr(engines, "FAILURES", 10**9)
    servers = {name: Liar(scripts, dialect) for name, dialect in FOREIGN.items()}
    async with serving(servers["exact"]), serving(servers["guessed"]):
        addresses = {}
        for name, server in servers.items():
            options = server.options(max_output=MOST_OUTPUT, idle_seconds=LONG, first_seconds=LONG)
            addresses[name] = server.address, {k: v for k, v in options.items() if k not in ("networks", "salt_key")}
        world = await in_database(make_world, addresses)
        async with opened(home) as runtime:
            patient(runtime.writer)
            runtime.requests.gate.waits_until = lambda since: since + _patience.get()
            assert await runtime.engines.connected(30)
            bench = Bench(runtime, pollers[0], scripts, moved, world)
            await bench.caught_up()
            yield bench
