"""A tenant with some days behind it: requests, corrections, grants and expiry, booked by the writer as ever."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from base import clock as database_clock
from base.ids import uuid7
from billing.models import Plan, UsageRecord, prices_of
from billing.promises import Measured
from billing.rating import CardPrices, charge
from billing.services import cards, credits, plans, promises, rollups
from billing.statements import jsonl, months
from billing.verify import sluice_verify
from billing.writer.apply import apply_now
from billing.writer.operations import EndFacts, RequestFacts, Rerate, Reserve, Settle, Settled, TrueUp

CLASSES = {"input": 1_000, "cache_read": 333, "output": 77, "reasoning": 10}
RATES = {0: {"input": 3_000_000, "cache_read": 300_000, "output": 12_000_001}, 5_000: {"input": 6, "output": 7}}
LONG = {"input": 6_000, "output": 5}
SOME = uuid7()


class Shop:
    """A tenant's traffic: what is done at a moment is booked then."""

    def __init__(self, wallet, clock):
        self.wallet, self.tenant, self.clock = wallet, wallet.tenant_id, clock
        self.at("01-01 00:00")
        self.version = cards.publish("card", RATES, request_fee=100)
        self.card = CardPrices.build(
            self.version.pk, 100, self.version.rates.values_list("tier_min_context", "usage_class", "rate"), 5_000
        )
        self.numbers = iter(range(10**6))

    def at(self, text):
        """Set the clock, as "11-03 10:00" of 2026."""
        moment = datetime.strptime(f"2026-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        self.clock.set(moment)
        return moment

    def give(self, amount, **options):
        options.setdefault("kind", "promotional")
        return credits.grant(wallet_id=self.wallet.pk, amount=amount, key=f"give:{next(self.numbers)}", **options)

    def serve(self, classes=None, *, exact=True, multiplier_bp=9_000, model="m", end_user="", **facts):
        classes = CLASSES if classes is None else classes
        made = Reserve(
            request=uuid7(int(database_clock.now().timestamp() * 1000)), wallet=self.wallet.pk, amount=20_000, least=0,
            owner=SOME, deployment=SOME, card_version=self.card.id, tenant=self.tenant, project=SOME, api_key=None,
            model=model, multiplier_bp=multiplier_bp, facts=RequestFacts(end_user=end_user),
        )  # fmt: skip
        amount = charge(classes, self.card, multiplier_bp)
        settle = Settle(made.request, self.wallet.pk, amount, classes, EndFacts(**facts), exact=exact)
        apply_now([made, settle])
        return made

    def correct(self, made, classes):
        amount = charge(classes, self.card, made.multiplier_bp)
        apply_now([TrueUp(made.request, self.wallet.pk, amount, classes)])

    def serve_late(self):
        """Serve a request that misses the promise of its plan, which gives a quarter back."""
        plans.ensure_default_plans()
        version = plans.publish_version(Plan.objects.first(), promised_ttft_ms=500, promise_credit_bp=2_500)
        return self.serve(promise=Measured(version.pk, ttft_ms=812, ttft_most_ms=500, missed=("ttft",)))

    def credit(self):
        """Give back what was missed, as the jobs do."""
        rollups.consume_usage()
        promises.credit(self.wallet.pk)

    def refund(self, made, amount=None):
        number = next(self.numbers)
        said = {"actor": "sam@example.com", "reason": "a broken answer"}
        return credits.refund_request(request=made.request, amount=amount, key=f"refund-{number}", **said)

    def rerate(self, made, classes, times=2):
        """Price a request by another version of the card, whose rates are so many times as high."""
        rates = {start: {name: rate * times for name, rate in tier.items()} for start, tier in RATES.items()}
        version = cards.publish(f"dear-{next(self.numbers)}", rates, request_fee=100)
        card = prices_of([version.pk])[version.pk]
        last = UsageRecord.objects.filter(request=made.request).order_by("-revision").first()
        op = Rerate(
            request=made.request, wallet=self.wallet.pk, revision=last.revision, card_version=card.id, run=uuid7(),
            charge=charge(classes, card, made.multiplier_bp), multiplier_bp=made.multiplier_bp, actor="sam@example.com",
            reason="the right price",
        )  # fmt: skip
        [answer] = apply_now([op])
        assert isinstance(answer, Settled)

    def seal(self):
        """Do what the job does; the clock says which days are over."""
        months.turn(self.wallet.pk)

    def statement(self, month):
        return b"".join(self.pieces(month)).decode()

    def pieces(self, month):
        return jsonl.lines(months.month_of(self.tenant, months.parsed(month)), "Tenant", "tenant")


@pytest.fixture
def shop(wallet, clock):
    return Shop(wallet, clock)


@pytest.fixture
def busy(shop):
    """October's end, November whole, and a day of December; November has a statement."""
    shop.at("10-31 23:10")
    shop.give(500_000, reason="welcome", actor="sam@example.com")
    shop.give(12_000, kind="plan", expires_at=datetime(2026, 11, 20, tzinfo=UTC), priority=0)
    first = shop.serve()
    shop.at("11-01 00:00")
    shop.serve(end_user="somebody")
    shop.at("11-03 10:00")
    estimated = [shop.serve(exact=False) for _ in range(2)]
    shop.serve({}, waived=True)
    long = shop.serve(LONG)
    shop.at("11-04 09:00")
    shop.correct(estimated[0], CLASSES | {"output": 500})
    shop.at("11-20 00:01")
    months.turn(shop.wallet.pk)
    shop.correct(estimated[1], {"input": 10})  # its grant has ended since: a part goes to breakage
    shop.at("11-25 10:00")
    shop.refund(long, 40)
    shop.rerate(estimated[0], CLASSES | {"output": 500})
    shop.rerate(long, LONG)  # 40 of its new price stay refunded
    shop.refund(first)  # its grant has ended too
    shop.at("12-01 12:00")
    shop.serve(multiplier_bp=5_000)
    shop.at("12-02 00:30")
    shop.seal()
    return shop


def run_verifier(capsys, *arguments):
    """Return the verifier's exit code and what it printed."""
    capsys.readouterr()
    code = sluice_verify.main([str(one) for one in arguments])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.fixture
def verify(tmp_path, capsys):
    """Verify statements, given as text: returns the exit code and what was printed."""

    def verify(*texts, arguments=()):
        paths = []
        for number, text in enumerate(texts):
            paths.append(tmp_path / f"{number}.jsonl")
            paths[-1].write_text(text)
        return run_verifier(capsys, *paths, *arguments)

    return verify
