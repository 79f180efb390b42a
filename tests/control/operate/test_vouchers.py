"""Vouchers on the operator's pages and by command, redeemed on the tenant's page and by the API."""

from __future__ import annotations

import json
import re
from html import unescape
from io import StringIO
from urllib.parse import unquote

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from base.units import MICRO
from billing.models import CreditGrant, LedgerTransfer, Voucher, VoucherBatch
from billing.services import vouchers
from tenancy.models import AuditEvent, Membership, User
from tests.control.operators import browser_of, operator, text_of

pytestmark = pytest.mark.django_db
LISTING, NEW, REDEEM = reverse("operate-vouchers"), reverse("operate-vouchers-new"), "/api/v1/vouchers/redeem/"
TERMS = {"count": "3", "amount": "12.5", "note": "Fair", "uses": "2", "key": "operate:once"}


def a_code(**terms):
    given = {"key": f"k{VoucherBatch.objects.count()}", "count": 1, "note": "n", "amount": MICRO, "made_by": ""}
    _, [code] = vouchers.make(**given | terms)
    return code


def command(*words):
    out = StringIO()
    call_command("vouchers", *words, stdout=out)
    return out.getvalue().split("\n")


def test_codes_are_made_shown_once_followed_and_withdrawn(acme):
    desk = browser_of(operator("billing"))
    assert "No voucher was made yet" in text_of(desk.get(LISTING))
    made = text_of(desk.post(NEW, TERMS))
    codes = re.findall(r"(?:[0-9A-Z]{4}-){4}[0-9A-Z]{4}", re.search(r'<pre id="codes"[^>]*>([^<]+)', made)[1])
    assert len(codes) == 3
    saved = re.search(r'href="data:text/csv;charset=utf-8,([^"]+)"', made)[1]
    assert unquote(unescape(saved)).split() == ["code", *codes]
    assert "shown already" in text_of(desk.post(NEW, TERMS)), "sent twice"
    vouchers.redeem(tenant_id=acme.tenant.pk, code=codes[0], actor="a")
    batch = VoucherBatch.objects.get()
    assert "1 of 6" in text_of(desk.get(LISTING))
    assert "redeemed 1 time" in text_of(desk.post(LISTING, {"code": codes[0].lower()}))
    page = text_of(desk.get(reverse("operate-voucher-batch", args=[batch.pk])))
    assert acme.tenant.name in page
    assert codes[1] not in page
    end = reverse("operate-vouchers-withdraw", args=[batch.pk])
    desk.post(f"{end}?code={vouchers.find(codes[1]).pk}", {"reason": "leaked"})
    assert [vouchers.find(code).withdrawn_at is None for code in codes] == [True, False, True]
    desk.post(end, {"reason": "over"})
    assert not Voucher.objects.filter(withdrawn_at=None).exists()
    assert "Withdrawn" in text_of(desk.get(LISTING))
    trail = AuditEvent.objects.unscoped().filter(tenant=None)
    assert trail.filter(action="vouchers.created").count() == 1
    assert trail.filter(action="voucher.changed", after__reason="leaked").count() == 1
    assert trail.filter(action="voucher.changed").count() == 3


def test_what_is_wrong_stands_at_its_field_and_a_viewer_makes_none():
    desk = browser_of(operator())
    for wrong in ({"currency": "EUR"}, {"paid_amount": "5"}, {"amount": "0"}, {"valid_until": "2020-01-01T00:00"}):
        assert desk.post(NEW, TERMS | wrong).status_code == 400
    assert not VoucherBatch.objects.exists()
    viewer = browser_of(operator("viewer"))
    assert "New vouchers" not in text_of(viewer.get(LISTING))
    assert viewer.post(NEW, TERMS).status_code == 403
    assert not VoucherBatch.objects.exists()


def test_the_command_makes_lists_and_withdraws(acme):
    *codes, _ = command("create", "500", "--note", "Fair", "--count", "2", "--paid", "49.90 EUR", "--credit-days", "30")
    batch = VoucherBatch.objects.get()
    assert (batch.amount, batch.paid_amount, batch.currency, batch.credit_days) == (500 * MICRO, 4990, "EUR", 30)
    assert command("list")[0] == f"{batch.pk}  Fair: 2 codes of 500 credits (49.90 EUR); used 0 of 2, 0 withdrawn"
    assert command("withdraw", codes[0]) == ["withdrawn: 1", ""]
    assert command("withdraw", str(batch.pk)) == ["withdrawn: 1", ""]
    for wrong in (["create", "x", "--note", "n"], ["create", "1", "--note", ""], ["withdraw", "nothing"]):
        with pytest.raises(CommandError):
            command(*wrong)


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("billing", True), ("admin", False), ("member", False)])
def test_owners_and_billing_members_redeem_on_their_page(acme, role, may):
    code, client = a_code(credit_days=30), acme.client()
    if role != "owner":
        user = User.objects.create_user(f"{role}@acme.example")
        Membership(tenant=acme.tenant, user=user, role=role).save(force_insert=True)
        client = browser_of(user)
    answer = client.post(reverse("console-redeem"), {"code": code}, follow=True)
    assert ("1 credits are yours" in text_of(answer)) == may
    assert CreditGrant.objects.filter(source=f"voucher …{code[-4:]}").exists() == may
    if may:
        assert "redeemed this code already" in text_of(
            client.post(reverse("console-redeem"), {"code": code}, follow=True)
        )
        event = AuditEvent.objects.unscoped().get(action="credit.granted", tenant=acme.tenant)
        assert event.after["reason"] == f"Voucher …{code[-4:]}"


def test_an_admin_key_redeems_by_the_api_and_a_key_does_not(acme, other, settings):
    code = a_code()

    def post(headers, text):
        body = json.dumps({"code": text})
        return Client().post(REDEEM, body, content_type="application/json", headers=headers)

    assert post(acme.bearer, code).status_code in (401, 403)
    answer = post(acme.admin_bearer, code)
    assert answer.status_code == 201
    assert answer.json()["amount"] == {"credits": "1", "credits_micro": MICRO}
    assert LedgerTransfer.objects.get(grant=answer.json()["id"]).actor.startswith("admin key")
    used = post(other.admin_bearer, code)
    assert (used.status_code, used.json()["error"]["code"]) == (400, "voucher_used_up")
    settings.SLUICE_VOUCHER_RATE = "3/hour"
    codes = [post(other.admin_bearer, "0000").json()["error"]["code"] for _ in range(3)]
    assert codes == ["voucher_unknown", "voucher_unknown", "rate_limit_exceeded"]
    page = other.client().post(reverse("console-redeem"), {"code": a_code()}, follow=True)
    assert "tried too many codes" in text_of(page), "page and API are counted together"
    assert post(acme.admin_bearer, "0000").json()["error"]["code"] == "voucher_unknown"


def test_a_payments_reference_stands_in_both_ledgers(acme):
    desk = browser_of(operator())
    asked = {"amount": "10", "reason": "Invoice 7", "kind": "paid", "paid_amount": "990", "currency": "eur"}
    asked |= {"paid_reference": "bank-123", "priority": "50", "key": "operate:g"}
    desk.post(reverse("operate-tenant-grant", args=[acme.tenant.slug]), asked)
    grant = CreditGrant.objects.get(paid_reference="bank-123")
    wallet = reverse("operate-tenant-wallet", args=[acme.tenant.slug])
    assert "9.90 EUR paid (bank-123)" in text_of(desk.get(wallet))
    assert "Invoice 7 (bank-123)" in text_of(desk.get(wallet))
    assert "Invoice 7 (bank-123)" in text_of(acme.client().get(reverse("console-billing")))
    back = {"reference": "bank-124", "reason": "Cancelled"}
    desk.post(reverse("operate-tenant-refund", args=[acme.tenant.slug, grant.pk]), back)
    assert "Cancelled (bank-124)" in text_of(acme.client().get(reverse("console-billing")))
    without = asked | {"paid_amount": "", "currency": "", "key": "operate:h"}
    answer = desk.post(reverse("operate-tenant-grant", args=[acme.tenant.slug]), without)
    assert "a payment has an amount and a currency" in text_of(answer).lower()
