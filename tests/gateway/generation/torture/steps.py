"""The steps of the torture, drawn by dice.

What must become of each request stands in `verdicts`, and what must be so of the books after every step in `books`. A
failure tells its seed and the last steps: the same seed throws the same.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter, deque
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest

from base.ids import uuid7
from billing.models import CreditGrant, Hold, UsageRecord, Wallet
from billing.services import credits, plans, sweeps, wallets
from billing.services.errors import CardError, InsufficientCreditError
from gateway.errors.refusal import Refusal
from gateway.generation.attempts import attempt_id
from gateway.generation.sweep import Sweep
from inference.types import Finished, FinishReason, Usage
from tenancy.models import APIKey
from tenancy.services import keys
from tests.gateway.generation.torture import prices
from tests.gateway.generation.torture.bench import (
    FOREIGN,
    MOST,
    OWN,
    PLANS,
    Asked,
    Bench,
    Contract,
    Customer,
    opened_bench,
    publish,
)
from tests.gateway.generation.torture.books import check, room_of
from tests.gateway.generation.torture.engines import LIES, Script
from tests.gateway.generation.torture.verdicts import judge, may_wait
from tests.gateway.world import in_database, settled

MODELS = ("own", "own", "cached", "lost", "broken", "auto", "exact", "exact", "exact", "guessed", "guessed")
STEPS = {
    "ask": 8, "ask_several": 3, "ask_at_the_edge": 10, "go_on": 7, "leave": 2, "wait": 6, "give": 3, "drain": 3,
    "void": 1, "refund": 1, "freeze": 1, "change_plan": 2, "end": 1, "publish": 4, "limit": 2, "jobs": 1,
    "come_back": 2,
}  # fmt: skip
WAITS = (*["moments"] * 2, *["seconds"] * 4, *["to the end"] * 2, "over the end", "hours", "days", "month")
JOBS = timedelta(seconds=30)  # so often jobs come
LEASE = timedelta(seconds=20)  # for so long requests run on without a renewal


class Torture:
    """The steps, drawn one by one."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.dice = bench, random.Random(seed)
        self.log: deque[str] = deque(maxlen=60)
        self.looked_at: set[int] = set()
        self.seen = Counter[str]()  # how requests ended

    async def run(self, steps: int) -> None:
        names, weights = list(STEPS), list(STEPS.values())
        for number in range(steps):
            [name] = self.dice.choices(names, weights)
            await self.bench.at(self.bench.now + timedelta(milliseconds=1))
            await getattr(self, name)()
            await self.look(is_summed=number % 7 == 0)
        await self.until_idle()
        await self.jobs()
        await self.look(is_summed=True)
        assert not await in_database(Hold.objects.exists)

    async def look(self, *, is_summed: bool) -> None:
        """Wait until nothing moves, then look at what became of the requests and at the books."""
        await self.bench.quiet(partial(may_wait, self.bench))
        over = [one for one in self.bench.requests if one.is_over and one.number not in self.looked_at]
        for request in over:
            self.looked_at.add(request.number)
            assert request.task is not None
            request.task.result()
            end = request.end
            self.note("over", request.number, end, request.refusal or request.outcome)
            self.seen[end] += 1
            is_alone = sum(one.customer is request.customer for one in over) == 1
            await judge(self.bench, request, is_alone=is_alone)
        await in_database(check, self.bench, is_summed=is_summed)

    async def until_idle(self) -> None:
        while self.bench.running:
            for request in self.bench.stopped:
                self.bench.scripts.let_go_on(request.number)
            await self.look(is_summed=False)
        await settled(self.bench.runtime)

    def note(self, *said: object) -> None:
        self.log.append(f"{self.bench.now:%m-%d %H:%M:%S.%f} " + " ".join(map(str, said)))

    # -- requests ---------------------------------------------------------------------------------------------------

    def drawn(self) -> Asked:
        dice, bench = self.dice, self.bench
        served = [one for one in bench.customers if one.contract is not None and not one.is_frozen]
        customer = dice.choice(served if served and dice.random() < 0.95 else bench.customers)
        model = dice.choice(MODELS)
        words = dice.choice([1, 2, 5, 12, 30, 70])
        foreign = dice.choice([1, 3, 9, 25, 40]) if model in FOREIGN else words
        script = Script(
            words=foreign,
            thought=dice.choice([0, 0, 1, 3, words]) if model in ("own", *FOREIGN) else 0,
            cached=dice.choice([None, 0, 0, 2, 10**6]),
            lie=dice.choice(sorted(LIES)),
            gate=dice.choice([0, 1, 2, 4, 10]),
            die=dice.choice([0, 0, 0, 0, 0, 1, 3]),
            status=dice.choice([200] * 15 + [500, 503]),
        )
        is_batch = dice.random() < 0.15
        return Asked(
            number=len(bench.requests),
            id=uuid7(int(bench.now.timestamp() * 1000)),
            customer=customer,
            key=dice.choice(customer.keys),
            script=script,
            model=model,
            words=words,
            most=dice.choice([None, None, 1, 3, 10, 50, 200]),
            is_batch=is_batch,
            is_patient=dice.random() < 0.2 and not is_batch,
            card=prices.in_force(bench.versions[model], bench.now),
        )

    async def ask(self) -> None:
        request = self.drawn()
        self.note("ask", request)
        self.bench.ask(request)

    async def ask_several(self) -> None:
        for _ in range(self.dice.randrange(2, 5)):
            await self.ask()

    async def ask_at_the_edge(self) -> None:
        """Ask with just as much credit free as is wanted, or hardly less."""
        request = self.drawn()
        if busy := [one.customer for one in self.bench.stopped]:
            request.customer = self.dice.choice(busy)
            request.key = self.dice.choice(request.customer.keys)
        with suppress(Refusal):
            principal = await self.bench.runtime.principals.by_key(request.key.secret)
            request.multiplier_bp = request.card.multiplier(principal.multiplier_bp, is_batch=request.is_batch)
        most = request.wanted(2**63)
        left = self.dice.choice([request.least - 1, request.least, (request.least + most) // 2, most - 1, most])
        seconds = self.dice.choice([None, None, 1, 5])
        await in_database(self._leave_free, request.customer, left, seconds)
        self.note("ask at the edge", request, left, seconds)
        self.bench.ask(request)

    def _leave_free(self, customer: Customer, left: int, seconds: int | None = None) -> None:
        """Have so much of a wallet be free, as far as that can be: of credit that ends after so many seconds."""
        room = room_of(customer, customer.keys[0], self.bench.now)
        key = f"left:{uuid.uuid4()}"
        change = min(left - room.free_in_wallet, MOST // 100)
        with suppress(InsufficientCreditError, ValueError):
            if seconds is not None:
                self._leave_free(customer, 0)
                end = self.bench.now + timedelta(seconds=seconds)
                credits.grant(
                    wallet_id=customer.wallet, amount=left, kind=CreditGrant.Kind.PLAN, key=key, expires_at=end
                )
            elif change:
                credits.adjust(wallet_id=customer.wallet, amount=change, key=key, actor="a", reason="r")

    async def go_on(self) -> None:
        if stopped := self.bench.stopped:
            request = self.dice.choice(stopped)
            self.note("go on", request.number)
            self.bench.scripts.let_go_on(request.number)

    async def leave(self) -> None:
        begun = [one for one in self.bench.stopped if one.generation is not None]
        if begun:
            request = self.dice.choice(begun)
            self.note("leave", request.number)
            request.has_left = True
            request.generation.client_left()

    # -- time -------------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        bench, dice = self.bench, self.dice
        end = dice.choice([bench.midnight, bench.month_end, bench.month_end])
        far = dice.choice(WAITS)
        match far:
            case "moments":
                target = bench.now + timedelta(milliseconds=dice.randrange(1, 2_000))
            case "seconds":
                target = bench.now + timedelta(seconds=dice.randrange(1, 20))
            case "to the end":
                target = end - timedelta(seconds=dice.choice([0.001, 2, 9]))
            case "over the end":
                target = end + timedelta(seconds=dice.choice([0, 0.001, 5]))
            case "hours":
                target = bench.now + timedelta(hours=dice.randrange(1, 30))
            case "days":
                target = bench.now + timedelta(days=dice.randrange(1, 9))
            case _:
                target = bench.now + timedelta(days=31)
        target = max(target, bench.now)
        self.note("wait", far, target)
        if target - bench.now > LEASE:
            await self.until_idle()
        elif target - bench.renewed_at > LEASE:
            await bench.renew()
        if is_long := target - bench.now > JOBS:
            await self.jobs()
        while (end := bench.month_end) <= target:
            await bench.at(end)
            if not is_long:
                continue
            if (after := end + dice.random() * JOBS) > target:
                is_long = False  # they come later
                continue
            await bench.at(after)
            await self.jobs()
        await bench.at(target)
        if is_long:
            await self.jobs()
        if not bench.running:
            bench.renewed_at = bench.now

    async def jobs(self) -> None:
        self.note("jobs")

        def work() -> None:
            for sweep in (sweeps.monthly_grants(), sweeps.expiry()):
                while sweep.turn():
                    if not sweep.is_under_way:
                        break

        await in_database(work)
        await self.bench.caught_up()

    # -- what operators and tenants do ------------------------------------------------------------------------------

    def customer(self) -> Customer:
        return self.dice.choice(self.bench.customers)

    def amount(self) -> int:
        """Return about what a request costs just now: less, or a few times as much."""
        model = self.dice.choice(MODELS)
        card = prices.in_force(self.bench.versions[model], self.bench.now)
        cost = card.dearest(self.dice.choice([8, 20, 50, 80]), self.dice.choice([1, 4, 20, 100]), 10_000)
        return min(max(1, int(cost * self.dice.choice([0.1, 0.6, 1, 1, 3]))), 10**16)

    async def give(self) -> None:
        customer, dice = self.customer(), self.dice
        amount, kind = self.amount(), dice.choice(list(CreditGrant.Kind))
        seconds = dice.choice([None, None, 1, 15, 86_400, 86_400 * 40])
        terms = {"paid_amount": dice.randrange(1000), "currency": "EUR"} if kind == "paid" else {}
        self.note("give", customer.tenant, amount, kind, seconds)

        def give() -> None:
            with suppress(ValueError):  # the wallet has as much as one may
                credits.grant(
                    wallet_id=customer.wallet,
                    amount=amount,
                    kind=kind,
                    key=f"given:{uuid.uuid4()}",
                    priority=dice.choice([0, 50, 50, 100]),
                    expires_at=None if seconds is None else self.bench.now + timedelta(seconds=seconds),
                    **terms,
                )

        await in_database(give)

    async def drain(self) -> None:
        """Leave a wallet about what a request costs."""
        customer = self.customer()
        left = self.amount()
        self.note("drain", customer.tenant, left)
        await in_database(self._leave_free, customer, left)

    async def void(self) -> None:
        customer, number = self.customer(), self.dice.random()

        def void() -> None:
            grants = list(CreditGrant.objects.filter(wallet=customer.wallet).order_by("-created_at"))
            if grants:
                one = grants[int(number * min(len(grants), 4))]
                self.note("void", customer.tenant, one.kind, one.remaining)
                credits.void(grant_id=one.pk, key=f"void:{uuid.uuid4()}", actor="a", reason="r")

        await in_database(void)

    async def refund(self) -> None:
        customer = self.customer()

        def refund() -> None:
            one = CreditGrant.objects.filter(wallet=customer.wallet, paid_amount__gt=0, remaining__gt=0).first()
            if one is not None:
                self.note("refund", customer.tenant, one.remaining)
                with suppress(ValueError):  # it is over, or held
                    credits.refund(grant_id=one.pk, key=f"refund:{uuid.uuid4()}", actor="a", reason="r", reference="x")

        await in_database(refund)

    async def freeze(self) -> None:
        customer = self.customer()
        customer.is_frozen = not customer.is_frozen and self.dice.random() < 0.7
        self.note("freeze" if customer.is_frozen else "unfreeze", customer.tenant)
        state = Wallet.State.FROZEN if customer.is_frozen else Wallet.State.OPEN
        await in_database(wallets.set_state, customer.wallet, state)

    async def change_plan(self) -> None:
        customer, plan, at_once = self.customer(), self.dice.choice(sorted(PLANS)), self.dice.random() < 0.3
        contract, now = customer.contract, self.bench.now
        self.note("change plan", customer.tenant, plan, "at once" if at_once else "")
        if contract is None:
            customer.contract = Contract(plan, now, self.dice.choice(["UTC", "Pacific/Auckland"]))
            customer.months.append((now, PLANS[plan]["monthly_credits"]))
            await in_database(plans.subscribe, customer.tenant.pk, plan, now, time_zone=customer.contract.zone)
        else:
            is_later = PLANS[plan]["monthly_credits"] < PLANS[contract.plan]["monthly_credits"] and not at_once
            contract.next_plan, contract.is_ending = plan if is_later else "", False
            contract.plan = contract.plan if is_later else plan
            await in_database(plans.change_plan, customer.tenant.pk, plan, at_once=at_once)
        await self.bench.caught_up()

    async def end(self) -> None:
        customer, at_once = self.customer(), self.dice.random() < 0.3
        if customer.contract is None:
            return
        self.note("end", customer.tenant, "at once" if at_once else "")
        await in_database(plans.end, customer.tenant.pk, at_once=at_once)
        customer.contract.next_plan, customer.contract.is_ending = "", True
        if at_once:
            customer.contract = None
        await self.bench.caught_up()

    async def publish(self) -> None:
        model, card = self.dice.choice([*OWN, *FOREIGN]), prices.drawn(self.dice)
        since = self.bench.now + timedelta(seconds=self.dice.choice([0, 0, 3, 3_600]))
        last = self.bench.versions[model][-1].since
        if last is not None and last >= since:
            return
        self.note("publish", model, card, since)
        if card.is_refused:
            with pytest.raises(CardError, match="cache_read"):
                await in_database(publish, model, card, since)
            return
        self.bench.versions[model].append(await in_database(publish, model, card, since))
        await self.bench.caught_up()

    async def limit(self) -> None:
        customer = self.customer()
        key = self.dice.choice(customer.keys)
        limits = {f"{period}": self.dice.choice([None, self.amount()]) for period in ("day", "month", "total")}
        self.note("limit", customer.tenant, key.id, limits)

        def limit() -> None:
            row = APIKey.objects.of(customer.tenant).get(pk=key.id)
            change = {f"{period}_limit": amount for period, amount in limits.items()}
            keys.change_key(tenant=customer.tenant, key=row, change=change)

        if key.limited_since is None:
            if not any(limits.values()):
                return
            key.limited_since = self.bench.now
        key.limits = limits
        await in_database(limit)
        await self.bench.caught_up()

    async def come_back(self) -> None:
        """Let the worker that lost requests tell what it knows of one, and correct the estimate."""
        bench, dice = self.bench, self.dice

        def estimates() -> list[UsageRecord]:
            corrected = UsageRecord.objects.filter(revision__gt=0).values("request")
            return list(UsageRecord.objects.filter(model="lost", exact=False).exclude(request__in=corrected))

        if found := await in_database(estimates):
            record, more = dice.choice(found), dice.choice([-2, 0, 1, 30])
            usage = Usage(record.input_tokens, record.cache_read_tokens, max(0, record.output_tokens + more))
            self.note("come back", record.request, usage)
            engine = bench.engine("lost")
            engine.record.entries[attempt_id(record.request, 0)] = Finished(FinishReason.STOP, usage)
        runtime = bench.runtime
        sweep = Sweep(engines_of=runtime.engines.of, submit=runtime.writer.submit, threads=runtime.threads)
        await sweep.turn()


async def torture(tmp_path, monkeypatch, seed: int, steps: int) -> Torture:
    """Do so many steps as the seed says; tell the last of them where anything is wrong."""
    async with opened_bench(tmp_path, monkeypatch) as bench:
        run = Torture(bench, seed)
        try:
            await run.run(steps)
        except BaseException as error:
            error.add_note("\n".join([f"seed {seed}, {len(run.log)} last steps:", *run.log]))
            for request in bench.running:
                bench.scripts.let_go_on(request.number)
                request.task.cancel()
            raise
        return run
