"""Billing: limits with their use now, grants in their order, and the ledger."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import CreditGrant, Wallet
from billing.services import credits
from control.screens.ledger import ledger_csv
from tests.billing.conftest import open_hold

pytestmark = pytest.mark.django_db


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def give(party, amount, key, **options):
    wallet = Wallet.objects.get(tenant=party.tenant)
    return credits.grant(wallet_id=wallet.id, amount=amount, kind=options.pop("kind", "paid"), key=key, **options)


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("admin", True), ("billing", True), ("member", False)])
def test_who_sees_the_ledger(people, role, may):
    client = people(role)
    assert client.get("/billing/").status_code == client.get("/billing/ledger.csv").status_code == (200 if may else 404)
    assert ('href="/billing/"' in client.get("/usage/").content.decode()) is may


def test_limits_stand_with_their_use_now(acme, used):
    used(acme, charge=2_000_000)
    open_hold(Wallet.objects.get(tenant=acme.tenant), 1_500_000)
    text = text_of(acme.client().get("/billing/"))
    assert "Requests at once 1 4 25.0 %" in text
    assert "Requests a minute up to 10 at once 2 30 6.7 %" in text
    assert "Credits a minute up to 20 at once 2 10 20.0 %" in text
    assert "1.5 held for requests" in text


def test_grants_stand_in_the_order_in_which_they_are_used(acme):
    give(acme, 7_000_000, "late", expires_at=timezone.now() + timedelta(days=90))
    give(acme, 3_000_000, "soon", kind="promotional", expires_at=timezone.now() + timedelta(days=2))
    give(acme, 5_000_000, "never")
    page = acme.client().get("/billing/").content.decode()
    table = re.search(r'id="grants".*?</table>', page, re.DOTALL)[0]
    rows = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in table.split("<tr")[2:]]
    kinds = [re.search("Promotional|Monthly credit|Paid", row)[0] for row in rows]
    assert kinds == ["Promotional", "Monthly credit", "Paid", "Paid", "Monthly credit"]
    assert "expires soon" in rows[0]
    assert "never" in rows[3]
    assert "comes" in rows[4]
    assert CreditGrant.objects.filter(wallet__tenant=acme.tenant).count() == 4


def test_credit_for_some_models_stands_apart(acme):
    give(acme, 7_000_000, "some", models=["small", "large"])
    give(acme, 5_000_000, "all")
    text = text_of(acme.client().get("/billing/"))
    assert "7 more for large and small alone" in text
    assert "Paid for large and small alone 7 7" in text
    found = acme.client().get("/chat/account/").json()
    assert found["restricted"] == [{"models": ["large", "small"], "more_micro": 7_000_000}]
    assert f"{found['available_micro'] // 1_000_000} credits; 7 more" in text


def test_the_ledger_is_paged_with_its_running_balance(acme, other):
    for number in range(30):
        give(acme, 1_000_000, f"gift {number}", reason=f"gift {number}")
    give(other, 77_000_000, "theirs", reason="theirs")
    client = acme.client()
    first = client.get("/billing/").content.decode()
    assert "<span>+<data" in first
    older = re.search(r'href="(/billing/\?before=[^"]*)#ledger">Older', first)[1]
    second = client.get(older).content.decode()
    assert "Older" not in second
    assert "Newer" in second

    def lines(page):
        return re.findall(
            r'<span>Credit given</span>.*?title="gift (\d+)".*?title="([\d.,]+) credits".*?title="([\d.,]+) credits"',
            page,
        )

    shown = lines(first) + lines(second)
    assert [int(number) for number, _, _ in shown] == list(range(29, -1, -1))
    assert [balance for _, _, balance in shown] == [str(130 - number) for number in range(30)]
    assert client.get(older.replace("before=", "before=x")).status_code == 404
    assert "theirs" not in first + second


def test_the_ledger_is_there_as_csv(acme):
    give(acme, 1_234_567, "gift", reason="=1+1")
    response = acme.client().get("/billing/ledger.csv")
    assert 'filename="ledger-acme-' in response["content-disposition"]
    assert response.is_async  # read on a thread of its own, while it is sent
    made = b"".join(ledger_csv(Wallet.objects.get(tenant=acme.tenant).id)).decode()
    rows = list(csv.DictReader(io.StringIO(made)))
    assert [(row["what"], row["credits"], row["balance"], row["reason"]) for row in rows] == [
        ("Credit given", "1.234567", "101.234567", "'=1+1"),
        ("Credit given", "100", "100", "Free v1, a month"),
    ]


def test_without_a_plan_it_says_so(acme):
    acme.tenant.subscriptions.update(state="ended")
    assert "Without one no request is let in" in text_of(acme.client().get("/billing/"))


def test_queries_are_few(acme, used, django_assert_max_num_queries):
    client = acme.client()
    for number in range(4):
        used(acme)
        give(acme, 1_000_000, f"gift {number}")
    client.get("/billing/")
    with django_assert_max_num_queries(18):
        client.get("/billing/")
