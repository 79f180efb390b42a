"""Vouchers: one grant for a tenant and code, at most so many tenants, however many try at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from base.errors import ServiceError
from base.units import MICRO
from billing.models import CreditGrant, LedgerTransfer, Voucher, VoucherBatch, VoucherUse, Wallet
from billing.services import vouchers
from tests.billing.books import assert_books_balance
from tests.billing.conftest import make_tenant
from tests.billing.services.test_races import at_once

TERMS = {"key": "k", "count": 1, "note": "Fair", "amount": 5 * MICRO, "made_by": "root@example.com"}


def made(**terms):
    """A new code."""
    _, [code] = vouchers.make(**TERMS | terms)
    return code


def redeemed(tenant, code):
    return vouchers.redeem(tenant_id=tenant.pk, code=code, actor="owner@acme.example")


def refusal(tenant, code):
    with pytest.raises(vouchers.VoucherError) as refused:
        redeemed(tenant, code)
    return refused.value.code


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
def test_a_code_of_three_uses_gives_credit_to_exactly_three_of_64():
    code, tenants = made(uses=3), [make_tenant() for _ in range(64)]
    answers = []
    for start in range(0, 64, 16):  # as many connections as are there
        answers += at_once(*[lambda tenant=tenant: redeemed(tenant, code) for tenant in tenants[start : start + 16]])
    assert sum(isinstance(one, CreditGrant) for one in answers) == 3
    assert [one.code for one in answers if not isinstance(one, CreditGrant)] == ["voucher_used_up"] * 61
    assert CreditGrant.objects.count() == VoucherUse.objects.count() == Voucher.objects.get().used == 3


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
def test_a_tenant_that_redeems_twice_at_once_has_it_once(wallet):
    code = made(uses=9)
    answers = at_once(*[lambda: redeemed(wallet.tenant, code)] * 8)
    assert sum(isinstance(one, CreditGrant) for one in answers) == 1
    assert {one.code for one in answers if not isinstance(one, CreditGrant)} == {"voucher_redeemed"}
    assert Voucher.objects.get().used == 1
    assert Wallet.objects.get(pk=wallet.pk).posted == 5 * MICRO
    assert_books_balance(wallet)


@pytest.mark.django_db
def test_what_a_code_gives_are_its_terms(tenant):
    paid = made(paid_amount=4990, currency="EUR", credit_days=30)
    grant = redeemed(tenant, paid)
    assert (grant.kind, grant.amount, grant.paid_amount, grant.currency) == ("paid", 5 * MICRO, 4990, "EUR")
    assert timedelta(days=29) < grant.expires_at - timezone.now() <= timedelta(days=30)
    [transfer] = LedgerTransfer.objects.all()
    assert (transfer.actor, transfer.reason) == ("owner@acme.example", f"Voucher …{paid[-4:]}")
    promotional = redeemed(tenant, made(key="other"))
    assert (promotional.kind, promotional.expires_at, promotional.paid_amount) == ("promotional", None, None)


@pytest.mark.django_db
def test_a_code_is_read_as_people_type_it_and_known_by_its_digest_alone(tenant, settings):
    code = made()
    assert len(code.replace("-", "")) == 20, "a hundred bits, of which twenty are shown"
    assert not set("ILOU") & set(code)
    row = Voucher.objects.get()
    assert code.replace("-", "") not in repr(row.__dict__).replace("-", "")
    typed = code.lower().replace("-", " ").replace("0", "o").replace("1", "l")
    settings.SLUICE_KEY_HASH_FALLBACKS = [settings.SLUICE_KEY_HASH_SECRET]
    settings.SLUICE_KEY_HASH_SECRET = "another, since the secret was replaced"
    assert redeemed(tenant, f" {typed} ").amount == 5 * MICRO


@pytest.mark.django_db
def test_each_refusal_has_its_code_and_changes_nothing(tenant, clock):
    assert refusal(tenant, "") == refusal(tenant, "0000-0000-0000-0000-0000") == "voucher_unknown"
    used = made(key="used")
    redeemed(make_tenant(), used)
    assert refusal(tenant, used) == "voucher_used_up"
    withdrawn = made(key="withdrawn")
    assert vouchers.withdraw(vouchers.find(withdrawn))
    assert not vouchers.withdraw(vouchers.find(withdrawn))
    assert refusal(tenant, withdrawn) == "voucher_withdrawn"
    ended = made(key="ended", valid_until=timezone.now() + timedelta(days=1))
    clock.set(timezone.now() + timedelta(days=2))
    assert refusal(tenant, ended) == "voucher_ended"
    mine = made(key="mine", uses=2)
    redeemed(tenant, mine)
    assert refusal(tenant, mine) == "voucher_redeemed"
    assert CreditGrant.objects.filter(wallet__tenant=tenant).count() == 1


@pytest.mark.django_db
def test_a_batch_is_made_once_for_a_key_and_only_with_terms_that_can_be():
    batch, codes = vouchers.make(**TERMS | {"count": 30})
    assert len(set(codes)) == 30
    assert vouchers.make(**TERMS) == (batch, [])
    wrong = [
        {"note": " "}, {"count": 0}, {"count": vouchers.MOST_CODES + 1}, {"amount": 0}, {"uses": 0}, {"credit_days": 0},
        {"paid_amount": 5}, {"currency": "EUR"}, {"paid_amount": 5, "currency": "euro"},
        {"paid_amount": -5, "currency": "EUR"}, {"valid_until": timezone.now()},
    ]  # fmt: skip
    for terms in wrong:
        with pytest.raises(ServiceError) as refused:
            made(key="wrong", **terms)
        assert refused.value.field in {
            "note",
            "count",
            "amount",
            "uses",
            "credit_days",
            "paid_amount",
            "currency",
            "valid_until",
        }
    assert VoucherBatch.objects.count() == 1
