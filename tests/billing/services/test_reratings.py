"""A re-rating does what its what-if said, once, whenever it is killed; a shadow goes on beside the real prices."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from base import clock
from base.ids import uuid7
from billing import rating, reconcile
from billing.models import (
    CreditGrant,
    Hold,
    LedgerTransfer,
    Plan,
    PlanVersion,
    RateCardVersion,
    Rerating,
    UsageRecord,
    Wallet,
)
from billing.rating import CLASSES
from billing.selectors.reratings import differences
from billing.services import cards, reratings, rollups
from billing.services.credits import refund_request
from billing.services.errors import RerateError
from billing.services.reratings import Terms, ask, carry_out, step
from billing.writer.apply import apply_now
from billing.writer.operations import EndFacts, Release, Rerate, Settle, Stale
from tests.billing.conftest import roll
from tests.billing.requests import RATES, last, publish, ran
from tests.billing.writer.test_trueup import end
from tests.billing.writer.world import grant, make_wallet, reserve

pytestmark = [pytest.mark.contract, pytest.mark.django_db(transaction=True)]
SAID = {"asked_by": "op", "reason": "wrong price"}


class KilledError(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def _books():
    yield
    rollups.consume_usage(100_000)
    assert reconcile.check(connection) == []


def since(hours=48):
    return clock.now() - timedelta(hours=hours)


def to_the_end(run, size=7):
    while step(run, size):
        pass
    assert run.ended_at is not None
    return run


def busy_world(requests=40, seed=3):
    """Three tenants with several grants, one of which has ended, and requests of every kind."""
    chance = random.Random(seed)
    card, other = publish("m"), publish("n", 2)
    wallets = [make_wallet() for _ in range(3)]
    gone = []
    for wallet in wallets:
        gone.append(grant(wallet, 20_000, priority=0, expires_at=timezone.now() + timedelta(days=1)))
        grant(wallet, 9_000, CreditGrant.Kind.PROMOTIONAL, priority=1)
        grant(wallet, 200_000, priority=2)
    made = []
    for number in range(requests):
        wallet = chance.choice(wallets)
        classes = {name: chance.choice([0, 3, 50, 500]) for name in CLASSES} | {"input": 1}
        model, own = chance.choice([("m", card), ("n", other), ("m-batch", card)])
        multiplier = rating.batch_multiplier(8_000, own) if model == "m-batch" else chance.choice([8_000, 10_000])
        exact, ago = number not in {3, 4}, 100_000 if number % 2 == 0 else 40_000  # 3 may still be corrected, 4 not
        made.append(
            ran(
                wallet,
                classes,
                own,
                ago=ago + number,
                model=model.removesuffix("-batch"),
                multiplier=multiplier,
                exact=exact,
            )
        )
        if number % 7 == 0:
            record = last(made[-1])
            amount = record.charge if number % 2 else max(record.charge // 2, 1)
            refund_request(request=made[-1], amount=amount, key=f"r{number}", actor="a", reason="r")
    broken = reserve(wallets[0], 5, request=uuid7(int((clock.now().timestamp() - 50_000) * 1000)))
    apply_now([broken, Release(broken.request, broken.wallet, EndFacts("lost", waived=True))])
    for one in gone:
        end(one)
        roll(Wallet.objects.get(pk=one.wallet_id))
    return wallets, made


def sums_of(run):
    columns = ("tenant", "model", "usage_class", "requests", "tokens", "before", "after")
    return sorted(run.sums.values_list(*columns), key=str)


def figures(run):
    return run.looked, run.counted, run.changed, run.left, run.before, run.after


@pytest.mark.parametrize("how", ["dearer", "cheaper", "by model", "multiplier"])
def test_for_real_it_comes_to_what_the_what_if_said(how):
    _, made = busy_world()
    terms = {
        "dearer": {"version": RateCardVersion.objects.get(pk=publish("new", 3).id)},
        "cheaper": {"version": RateCardVersion.objects.get(pk=publish("new", 0).id)},
        "by model": {"cards": {"m": "n", "n": "n"}},
        "multiplier": {"multiplier": (8_000, 5_001)},
    }[how]
    before = {one: last(one) for one in made}
    what_if = to_the_end(ask(Terms(since=since(), **terms)), size=9)
    assert {one: last(one).revision for one in made} == {one: before[one].revision for one in made}
    posted = sum(Wallet.objects.values_list("posted", flat=True))
    real = to_the_end(carry_out(what_if, **SAID), size=4)
    assert figures(real) == figures(what_if)
    assert sums_of(real) == sums_of(what_if)
    assert min(what_if.left, what_if.changed, abs(what_if.difference)) > 0
    after = {one: last(one) for one in made}
    assert sum(after[one].charge - before[one].charge for one in made) == real.difference
    given = LedgerTransfer.objects.filter(code=LedgerTransfer.Code.RERATING, credit__kind="breakage")
    lost = sum(given.values_list("amount", flat=True))
    assert posted - sum(Wallet.objects.values_list("posted", flat=True)) == real.difference + lost
    assert Counter(after[one].revision - before[one].revision for one in made)[1] == real.changed
    said = LedgerTransfer.objects.filter(code=LedgerTransfer.Code.RERATING).values_list("actor", "reason").distinct()
    assert list(said) == [("op", "wrong price")]
    for by in ("tenant", "model"):
        assert sum(one.difference for one in differences(real, by)) == real.difference


def test_each_request_gets_the_prices_of_its_models_card_as_of_its_begin(clock):
    wallet = make_wallet(credit=100_000)
    moment = timezone.now()
    card = publish("m", effective_from=moment + timedelta(seconds=1))
    clock.set(moment + timedelta(days=1))
    early = ran(wallet, {"input": 100}, card, ago=7200)
    clock.set(moment + timedelta(days=1, hours=1))
    publish("m", 2)
    clock.set(moment + timedelta(days=2))
    late = ran(wallet, {"input": 100}, card, ago=7200)
    other = ran(wallet, {"input": 100}, card, ago=7000, model="x")
    run = to_the_end(ask(Terms(since=since(), cards={"m": "m"}), commit=True, **SAID))
    assert [last(one).charge for one in (early, late, other)] == [300, 600, 300]
    assert (run.counted, run.changed, run.before, run.after) == (3, 1, 900, 1_200)


def test_a_batchs_line_keeps_its_share_of_another_multiplier():
    wallet, card = make_wallet(credit=100_000), publish("m")
    half = ran(wallet, {"input": 100}, card, multiplier=rating.batch_multiplier(10_000, card))
    whole, another = ran(wallet, {"input": 100}, card), ran(wallet, {"input": 100}, card, multiplier=9_000)
    to_the_end(ask(Terms(since=since(), multiplier=(10_000, 8_000)), commit=True, **SAID))
    assert [last(one).charge for one in (half, whole, another)] == [120, 240, 270]


def plan_of(multiplier, **tiers):
    slug = f"p{Plan.objects.count()}"
    limits = {"request_limit": 1, "request_burst": 1, "credit_limit": 1, "credit_burst": 1, "concurrency": 1}
    plan = Plan.objects.create(slug=slug, name=slug)
    return PlanVersion.objects.create(plan=plan, number=1, multiplier_bp=multiplier, **limits, **tiers)


def test_requests_in_a_service_tier_keep_its_share_of_another_multiplier():
    wallet, card = make_wallet(credit=100_000), publish("m")
    plan_of(10_000, flex_bp=6_000, priority_bp=15_000)
    flex, priority, plain, another = (
        ran(wallet, {"input": 100}, card, multiplier=multiplier) for multiplier in (6_000, 15_000, 10_000, 9_000)
    )
    to_the_end(ask(Terms(since=since(), multiplier=(10_000, 8_000)), commit=True, **SAID))
    assert [last(one).multiplier_bp for one in (flex, priority, plain, another)] == [4_800, 12_000, 8_000, 9_000]
    assert [last(one).charge for one in (flex, priority, plain, another)] == [144, 360, 240, 270]


@pytest.mark.parametrize(
    ("was", "tiers"), [(20_000, {}), (12_500, {"flex_bp": 8_000}), (4_000, {"priority_bp": 25_000})]
)
def test_a_multiplier_that_requests_of_other_plans_have_too_is_moved_of_named_tenants_only(was, tiers):
    mine, other = make_wallet(credit=100_000), make_wallet(credit=100_000)
    card = publish("m")  # of batches it wants half
    plan_of(10_000)
    plan_of(was, **tiers)
    requests = [ran(wallet, {"input": 100}, card) for wallet in (mine, other)]
    with pytest.raises(RerateError, match=r"^tenants: .* requests of p1 v1 have the multiplier 1 too$"):
        ask(Terms(since=since(), multiplier=(10_000, 8_000)), commit=True, **SAID)
    to_the_end(ask(Terms(since=since(), multiplier=(10_000, 8_000), tenants=[mine.tenant_id]), commit=True, **SAID))
    assert [last(one).charge for one in requests] == [240, 300]


def test_a_multiplier_at_which_tiers_are_the_same_is_refused():
    plan_of(0, flex_bp=5_000)
    with pytest.raises(RerateError, match=r"^multiplier: "):
        ask(Terms(since=since(), multiplier=(0, 8_000)), **SAID)


@pytest.mark.parametrize("where", ["in the transaction", "after the commit"])
def test_killed_at_every_chunk_it_comes_to_the_same_sums(monkeypatch, where):
    busy_world(requests=24)
    version = RateCardVersion.objects.get(pk=publish("new", 3).id)
    what_if = to_the_end(ask(Terms(since=since(), version=version)))
    run = carry_out(what_if, **SAID)
    kills = Counter()
    if where == "in the transaction":
        do = reratings._Chunk.do

        def killed(chunk):
            do(chunk)
            kill(chunk._run.last)

        monkeypatch.setattr(reratings._Chunk, "do", killed)
    else:
        monkeypatch.setattr(Rerating, "refresh_from_db", lambda self: kill(Rerating.objects.get(pk=self.pk).last))

    def kill(last):
        kills[last] += 1
        if kills[last] == 1:
            raise KilledError

    for _ in range(100):
        try:
            if not reratings.step(Rerating.objects.get(pk=run.pk), 4):
                break
        except KilledError:
            continue
    monkeypatch.undo()
    run.refresh_from_db()
    assert run.ended_at is not None
    assert sum(kills.values()) > 6
    assert (figures(run), sums_of(run)) == (figures(what_if), sums_of(what_if))
    revised = Counter(UsageRecord.objects.filter(rerating=run.pk).values_list("request", flat=True))
    assert set(revised.values()) == {1}


def test_the_writer_re_rates_a_request_once_for_a_run_and_only_as_it_was_read():
    wallet, card = make_wallet(credit=10_000), publish("m")
    request, run = ran(wallet, {"input": 100}, card), uuid7()
    op = Rerate(
        request=request, wallet=wallet.pk, revision=0, charge=600, card_version=publish("n", 2).id,
        multiplier_bp=10_000, run=run, actor="a", reason="r",
    )  # fmt: skip
    apply_now([op])
    assert last(request).charge == 600
    again = msgspec.structs.replace(op, revision=1, charge=900)
    assert apply_now([again])[0].charge == 600
    assert apply_now([msgspec.structs.replace(again, run=uuid7(), revision=0)]) == [Stale()]
    assert last(request).revision == 1


def test_a_request_that_is_refunded_meanwhile_is_rated_as_it_is_then(monkeypatch):
    wallet, card = make_wallet(credit=10_000), publish("m")
    requests = [ran(wallet, {"input": 100}, card, ago=4000 - at) for at in range(3)]
    version = RateCardVersion.objects.get(pk=publish("n", 2).id)
    run = ask(Terms(since=since(), version=version), commit=True, **SAID)
    rows = reratings._rows

    def overtaken(*arguments):
        found = rows(*arguments)
        if not last(requests[1]).refunded:
            refund_request(request=requests[1], amount=100, key="r", actor="a", reason="r")
        return found

    monkeypatch.setattr(reratings, "_rows", overtaken)
    to_the_end(run)
    assert [(last(one).charge, last(one).refunded) for one in requests] == [(600, 0), (500, 100), (600, 0)]
    assert (run.before, run.after) == (800, 1_700)


def test_no_run_passes_a_request_that_holds_credit():
    wallet, card = make_wallet(credit=10_000), publish("m")
    first = ran(wallet, {"input": 100}, card, ago=4000)
    held = reserve(wallet, 300, request=uuid7(int((clock.now().timestamp() - 3900) * 1000)))
    apply_now([msgspec.structs.replace(held, card_version=card.id, model="m")])
    later = ran(wallet, {"input": 100}, card, ago=3800)
    run = ask(Terms(since=since(), version=RateCardVersion.objects.get(pk=publish("n", 2).id)), commit=True, **SAID)
    while step(run):
        pass
    assert (run.ended_at, run.last) == (None, first)
    assert not reratings.turn()
    apply_now([Settle(held.request, wallet.pk, 300, {"input": 100})])
    to_the_end(run)
    assert [last(one).charge for one in (first, held.request, later)] == [600] * 3
    assert not Hold.objects.exists()


def test_a_shadow_goes_on_until_the_next_version_is_in_force(clock):
    moment = timezone.now()
    wallet, card = make_wallet(credit=100_000), publish("m")
    clock.set(moment + timedelta(hours=1))
    ran(wallet, {"input": 100}, card, ago=1200)
    prices = cards.resolved({0: {one: 3 * rate for one, rate in RATES[0].items()}}, 7)
    run = ask(Terms(since=moment - timedelta(hours=1), card="m", models=["m"], prices=prices, follows=True))
    while step(run):
        pass
    assert (run.counted, run.before, run.after, run.ended_at) == (1, 300, 907, None)
    clock.set(moment + timedelta(hours=3))
    ran(wallet, {"input": 100}, card, ago=3600)
    ran(wallet, {"input": 100}, card, ago=3600, model="x")
    assert reratings.turn()
    run.refresh_from_db()
    assert (run.counted, run.before, run.after) == (2, 600, 1_814)
    publish("m", 3, effective_from=moment + timedelta(hours=4))
    clock.set(moment + timedelta(hours=5))
    ran(wallet, {"input": 100}, card, ago=5400)
    ran(wallet, {"input": 100}, card, ago=1800)  # at the new prices, for all that counts here
    to_the_end(run)
    assert (run.counted, run.before, run.after) == (3, 900, 2_721)
    assert run.until == moment + timedelta(hours=4)


@pytest.mark.postgresql
def test_two_processes_do_each_request_once():
    busy_world(requests=24)
    version = RateCardVersion.objects.get(pk=publish("new", 3).id)
    what_if = to_the_end(ask(Terms(since=since(), version=version)))
    run = carry_out(what_if, **SAID)
    together = threading.Barrier(2)

    def work(_):
        try:
            mine = Rerating.objects.get(pk=run.pk)
            together.wait(30)
            while mine.ended_at is None:
                step(mine, 3)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    run.refresh_from_db()
    assert (figures(run), sums_of(run)) == (figures(what_if), sums_of(what_if))


def test_what_cant_be_is_refused_by_its_field():
    version = RateCardVersion.objects.get(pk=publish("m").id)
    prices = cards.resolved(RATES, 0)
    now = clock.now()
    for terms, commit, field in (
        ({}, False, "version"),
        ({"version": version, "cards": {"m": "m"}}, False, "cards"),
        ({"prices": prices}, True, "prices"),
        ({"version": version, "until": now + timedelta(days=1)}, False, "until"),
        ({"version": version, "since": now}, False, "since"),
        ({"multiplier": (-1, 1)}, False, "multiplier"),
        ({"version": version, "follows": True}, False, "card"),
        ({"version": version, "follows": True, "card": "m"}, True, "follows"),
    ):
        with pytest.raises(RerateError, match=f"^{field}: "):
            ask(Terms(**{"since": since(), **terms}), commit=commit, **SAID)
    with pytest.raises(RerateError, match=r"^reason: "):
        ask(Terms(since=since(), version=version), commit=True)
    running = ask(Terms(since=since(), version=version), commit=True, **SAID)
    with pytest.raises(RerateError, match=r"^commit: "):
        ask(Terms(since=since(), version=version), commit=True, **SAID)
    assert reratings.stop(running)
    assert not reratings.stop(running)
    assert not step(Rerating.objects.get(pk=running.pk))
