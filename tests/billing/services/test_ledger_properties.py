"""Any mixture of grants, charges, holds, voids, corrections and time leaves the books in balance."""

from __future__ import annotations

import contextlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from billing.models import CreditGrant, Hold, Wallet
from billing.services import credits, wallets
from billing.services.errors import InsufficientCreditError
from tests.billing.books import assert_books_balance
from tests.billing.conftest import MovedClock, open_hold, roll
from tests.billing.services.test_credits import charge

pytestmark = [pytest.mark.money, pytest.mark.django_db]

amounts = st.integers(1, 50)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), amounts, st.one_of(st.none(), st.integers(1, 5))),
        st.tuples(st.just("hold"), amounts),
        st.tuples(st.just("settle"), st.floats(0, 1)),
        st.tuples(st.just("void"), st.integers(0, 5)),
        st.tuples(st.just("refund"), st.integers(0, 5)),
        st.tuples(st.just("adjust"), st.integers(-50, 50).filter(bool)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    ),
    max_size=14,
)
_numbers = itertools.count()


def burn_order(grant):
    never = datetime.max.replace(tzinfo=UTC)
    return (
        grant.priority,
        grant.expires_at or never,
        {"rollover": 0, "paid": 2}.get(grant.kind, 1),
        grant.effective_at,
        grant.pk,
    )


class World:
    """A wallet whose days the test counts; requests burn as the writer does."""

    def __init__(self, tenant, clock):
        self.clock = clock
        self.wallet = wallets.open_wallet(tenant_id=tenant.pk, name=f"w{next(_numbers)}")
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        clock.set(self.now)

    def fresh(self):
        return Wallet.objects.get(pk=self.wallet.pk)

    def grant(self, amount, days):
        expires_at = self.now + timedelta(days=days) if days else None
        number = next(_numbers)
        terms = {"kind": "paid", "paid_amount": 7, "currency": "EUR"} if number % 2 else {"kind": "plan"}
        credits.grant(wallet_id=self.wallet.pk, amount=amount, key=f"grant:{number}", expires_at=expires_at, **terms)

    def hold(self, amount):
        roll(self.wallet)  # as the writer does before a reserve
        fresh = self.fresh()
        if fresh.posted - fresh.held >= amount:
            open_hold(self.wallet, amount, reserved_at=self.now)

    def settle(self, fraction):
        hold = Hold.objects.filter(wallet=self.wallet).order_by("reserved_at", "id").first()
        if hold is None:
            return
        left = int(hold.amount * fraction)
        grants = sorted(CreditGrant.objects.filter(wallet=self.wallet, remaining__gt=0), key=burn_order)
        for grant in grants:
            ended = grant.expires_at is not None and grant.expires_at <= hold.reserved_at
            part = 0 if ended else min(left, grant.remaining)
            if part:
                charge(self.wallet, part, grant)
                left -= part
        assert left == 0, "a hold was not covered by the grants it stood on"
        fresh = self.fresh()
        Wallet.objects.filter(pk=self.wallet.pk).update(held=fresh.held - hold.amount)
        hold.delete()

    def void(self, index):
        grants = list(CreditGrant.objects.filter(wallet=self.wallet).order_by("id"))
        if grants:
            grant = grants[index % len(grants)]
            credits.void(grant_id=grant.pk, key=f"void:{next(_numbers)}", actor="a", reason="r")

    def refund(self, index):
        paid = list(CreditGrant.objects.filter(wallet=self.wallet, paid_amount__gt=0).order_by("id"))
        if paid:
            grant = paid[index % len(paid)]
            key = f"refund:{next(_numbers)}"
            with contextlib.suppress(ValueError):  # nothing is left of it
                credits.refund(grant_id=grant.pk, key=key, actor="a", reason="r", reference="x")

    def adjust(self, amount):
        try:
            credits.adjust(wallet_id=self.wallet.pk, amount=amount, key=f"a:{next(_numbers)}", actor="a", reason="r")
        except InsufficientCreditError:
            assert amount < 0

    def wait(self, days):
        self.now += timedelta(days=days)
        self.clock.set(self.now)

    def check(self):
        """The sums agree, holds are covered, and nothing but live credit is free."""
        assert_books_balance(self.wallet)
        fresh = self.fresh()
        assert fresh.held == sum(Hold.objects.filter(wallet=self.wallet).values_list("amount", flat=True))
        roll(self.wallet)
        fresh = self.fresh()
        assert fresh.posted >= fresh.held
        live = sum(
            grant.remaining
            for grant in CreditGrant.objects.filter(wallet=self.wallet)
            if grant.expires_at is None or grant.expires_at > self.now
        )
        assert fresh.posted - fresh.held <= live, "a new hold could stand on expired credit"


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_books_balance_and_holds_are_covered(steps, tenant, monkeypatch):
    with monkeypatch.context() as patched:
        world = World(tenant, MovedClock(patched))
        for name, *arguments in steps:
            getattr(world, name)(*arguments)
            world.check()
