"""The operator's pages of tenants: found, made, and everything that is done with one."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Permission
from django.http import QueryDict
from django.urls import reverse
from django.utils import timezone

from base.ids import uuid7
from base.units import MICRO
from billing.models import (
    CreditGrant,
    Invoice,
    LedgerTransfer,
    RecurringGrant,
    ScheduledGrant,
    Subscription,
    UsageRecord,
    UsageRollup,
    Wallet,
)
from billing.services import credits, plans
from control.belongings import erasure
from control.belongings.download import _lines
from control.operate import tenant_wallet
from control.operate import tenants as tenant_list
from control.screens import viewing
from routing.models import PublicModel
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Invitation, Membership, Project, Tenant, User
from tenancy.services import admin_keys, keys, tenants
from tests.control.operators import browser_of, operator, text_of
from tests.gateway.post import sent_mail

pytestmark = pytest.mark.django_db
LONG = "Gesellschaft für die Vermessung der Gezeiten an der Küste und auf den vorgelagerten Inseln mbH & Co. KG (2026)"


@pytest.fixture
def root(db):
    return browser_of(operator())


def page(name="", *args, slug="acme"):
    return reverse(f"operate-tenant-{name}" if name else "operate-tenant", args=[slug, *args])


def last_event(action):
    return AuditEvent.objects.unscoped().filter(action=action).order_by("-pk").first()


def make(number, plan="free"):
    slug = f"t{number:03d}"
    return tenants.create_tenant(name=f"Tenant {number:03d}", slug=slug, owner_email=f"{slug}@x.example", plan=plan)


def names_in(answer):
    return re.findall(r'<th scope="row" class="name"[^>]*><a href="[^"]*">([^<]*)</a>', text_of(answer))


def fields_of(client, path, **typed):
    """Return what a browser would send: the form's own values, and what is typed."""
    text = text_of(client.get(path))
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', text))
    hidden.pop("csrfmiddlewaretoken", None)
    return hidden | typed


def test_the_list_finds_filters_and_turns_pages(root, terms, monkeypatch):
    monkeypatch.setattr(tenant_list, "PAGE", 2)
    made = [make(number, "business" if number == 3 else "free") for number in range(5)]
    tenants.deactivate_tenant(tenant=made[4].tenant)
    path, met = reverse("operate-tenants"), []
    answer = root.get(path)
    while True:
        met.append(names_in(answer))
        following = re.search(r'href="([^"]*)">Next<', text_of(answer))
        if following is None:
            break
        answer = root.get(path + following[1].replace("&amp;", "&"))
    assert met == [["Tenant 000", "Tenant 001"], ["Tenant 002", "Tenant 003"], ["Tenant 004"]]
    back = re.search(r'href="([^"]*)">Previous<', text_of(answer))[1].replace("&amp;", "&")
    answer = root.get(path + back)
    assert names_in(answer) == met[1]
    back = re.search(r'href="([^"]*)">Previous<', text_of(answer))[1].replace("&amp;", "&")
    first = root.get(path + back)
    assert names_in(first) == met[0]
    assert ">Previous<" not in text_of(first)
    for query, found in (
        ({"q": "nant 003"}, ["Tenant 003"]),
        ({"q": "T002"}, ["Tenant 002"]),
        ({"plan": "business"}, ["Tenant 003"]),
        ({"state": "suspended"}, ["Tenant 004"]),
        ({"plan": "none"}, []),
        ({"state": "frozen"}, []),
        ({"after": "nobody"}, met[0]),
        ({"q": "\0", "state": "sleepy"}, met[0]),
    ):
        assert names_in(root.get(path, query)) == found, query
    Subscription.objects.filter(tenant=made[2].tenant).update(state="ended")
    Wallet.objects.filter(tenant=made[1].tenant).update(state="frozen")
    assert names_in(root.get(path, {"plan": "none"})) == ["Tenant 002"]
    assert names_in(root.get(path, {"state": "frozen"})) == ["Tenant 001"]


def used(party, days_ago, charge):
    UsageRollup.objects.create(
        id=uuid7(), hour=timezone.now() - timedelta(days=days_ago), tenant=party.tenant.id, project=party.project.id,
        model="m", requests=1, charge=charge,
    )  # fmt: skip


def test_the_list_shows_what_each_was_charged(root, acme, other):
    used(acme, 1, 3 * MICRO)
    used(acme, 2, MICRO)
    used(acme, 31, 100 * MICRO)
    text = text_of(root.get(reverse("operate-tenants")))
    row = next(one for one in text.split("<tr") if ">acme<" in one)
    assert 'value="4"' in row
    assert '<polyline points="' in row
    assert "<polyline" not in next(one for one in text.split("<tr") if ">other<" in one)


def test_the_list_takes_a_fixed_number_of_queries(root, terms, django_assert_num_queries):
    make(0)
    root.get(reverse("operate-tenants"))  # notes that the session is in use
    with django_assert_num_queries(5):
        root.get(reverse("operate-tenants"))
    for number in range(1, 5):
        make(number)
    with django_assert_num_queries(5):
        root.get(reverse("operate-tenants"))


def test_the_csv_has_all_that_match(root, acme, other, monkeypatch):
    monkeypatch.setattr(tenant_list, "_IN_CSV", 1)
    Tenant.objects.filter(slug="other").update(name="=SUM(A1)")
    used(acme, 0, 1_500_000)
    answer = root.get(reverse("operate-tenants-csv"))
    assert (answer.streaming, "tenants-" in answer["content-disposition"]) == (True, True)

    def sent(query):
        chunks = list(tenant_list._lines(tenant_list.Asked.of(QueryDict(query))))
        assert all(len(rows) == 1 for rows in chunks)  # made one after the other, as they are read
        return list(csv.DictReader(io.StringIO(b"".join(_lines(chunks)).decode())))

    rows = sent("")
    assert {row["slug"]: row["name"] for row in rows} == {"acme": "Acme", "other": "'=SUM(A1)"}
    acmes = next(row for row in rows if row["slug"] == "acme")
    assert (acmes["plan"], acmes["available_credits"], acmes["charged_30_days_credits"]) == ("Free", "100", "1.5")
    assert [row["slug"] for row in sent("q=acm")] == ["acme"]


def test_a_tenant_is_made_with_plan_and_owner(root, terms):
    path = reverse("operate-tenant-new")
    asked = {"name": LONG, "slug": "tides", "plan": "business", "owner_email": "boss@tides.example"}
    text = text_of(root.post(path, asked, follow=True))
    tenant = Tenant.objects.get(slug="tides")
    assert tenant.subscriptions.get().version.plan.slug == "business"
    invitation = Invitation.objects.of(tenant).get()
    assert (invitation.email, invitation.role) == ("boss@tides.example", "owner")
    [address] = re.findall(r'data-copy-text="([^"]*/invitations/[^"]*)"', text)
    assert root.get(address).status_code == 200
    assert address in sent_mail()[-1].body
    assert last_event("tenant.created").actor == "root@example.com"
    again = root.post(path, asked)
    assert again.status_code == 400
    assert re.search(r'id="id_slug_error"><li>Another tenant has this slug', text_of(again))
    wrong = text_of(root.post(path, {**asked, "slug": "tides2", "owner_email": "no address"}))
    assert 'value="tides2"' in wrong
    assert not Tenant.objects.filter(slug="tides2").exists()


TABS = ("", "people", "keys", "projects", "wallet", "limits", "audit")


@pytest.mark.parametrize("tab", TABS)
def test_each_tab_takes_few_queries_and_no_name_widens_it(acme, root, tab, django_assert_max_num_queries):
    Tenant.objects.filter(pk=acme.tenant.pk).update(name=LONG)
    User.objects.filter(pk=acme.owner.pk).update(name=LONG)
    for number in range(4):
        project = tenants.create_project(tenant=acme.tenant, name=f"{number} {LONG}"[:120])
        keys.create_key(tenant=acme.tenant, project=project, name=LONG[:120], created_by=acme.owner)
        credits.grant(wallet_id=wallet(acme).pk, amount=MICRO, kind=CreditGrant.Kind.PAID, key=f"g{number}")
    used(acme, 1, MICRO)
    with django_assert_max_num_queries(18):
        answer = root.get(page(tab))
    text = text_of(answer)
    assert answer.status_code == 200
    assert len(answer.content) < 100_000
    assert not re.findall(r">[^<]*[0-9a-f]{8}-[0-9a-f]{4}-7[^<]*<", text)
    assert "style=" not in text


def wallet(party):
    return Wallet.objects.get(tenant=party.tenant)


def test_usage_is_told_apart_by_endpoint_and_by_member_in_the_chat(root, acme):
    mine = acme.key.pk
    for endpoint, key, charge in (("responses", None, 3), ("responses", mine, 1), ("embeddings", mine, 2)):
        request = uuid7()
        UsageRecord.objects.create(
            id=request, request=request, day=timezone.now().date(), tenant=acme.tenant.pk, project=acme.project.pk,
            api_key=key, user=None if key else acme.owner.pk, wallet=uuid7(), model="m", deployment=uuid7(),
            endpoint=endpoint, card_version=uuid7(), charge=charge * MICRO, held=0, reserved_at=timezone.now(),
        )  # fmt: skip
    text = text_of(root.get(page()))
    by_endpoint, by_member = text.split(">By endpoint</h2>")[1].split(">By member in the chat</h2>")
    assert re.findall(r'class="name"[^>]*>(?:<[^>]*>)*(\w+)', by_endpoint)[:2] == ["responses", "embeddings"]
    assert 'value="4"' in by_endpoint.split("embeddings")[0]
    assert acme.owner.email in by_member
    assert 'value="3"' in by_member


def test_unknown_slugs_and_rows_of_others_are_not_found(root, acme, other):
    assert root.get(page(slug="nobody")).status_code == 404
    theirs = Project.objects.of(other.tenant).get()
    grant = CreditGrant.objects.get(wallet__tenant=other.tenant)
    for name, pk in (
        ("project-rename", theirs.pk), ("key-revoke", other.key.pk), ("key-rename", other.key.pk),
        ("member", other.membership.pk), ("void", grant.pk), ("refund", grant.pk), ("key-made", other.key.pk),
    ):  # fmt: skip
        assert root.get(page(name, pk)).status_code == 404, name


ACTS = {
    "grant": "billing", "adjust": "billing", "freeze": "billing", "plan": "billing", "end": "billing",
    "suspend": "admin", "activate": "admin", "invite": "admin", "settings": "admin", "export": "admin",
    "erase": "admin", "key-new": "admin", "project-new": "admin", "view": "viewer",
}  # fmt: skip


@pytest.mark.parametrize("role", ["viewer", "support", "billing", "admin"])
def test_a_role_is_shown_and_does_its_part_alone(acme, role):
    client = browser_of(operator(role))
    shown = "".join(text_of(client.get(page(tab))) for tab in TABS)
    may = {name for name, needed in ACTS.items() if role == "admin" or needed in (role, "viewer")}
    for name in ACTS:
        answer = client.get(page(name))
        assert answer.status_code == (200 if name in may else 403), name
        if name in may:
            continue
        assert f'href="{page(name)}"' not in shown, name
        assert client.post(page(name)).status_code == 403, name
    for name in may - {"activate"}:
        assert f'href="{page(name)}"' in shown, name
    may_revoke = role in ("support", "admin")
    assert client.get(page("key-revoke", acme.key.pk)).status_code == (200 if may_revoke else 403)
    assert (page("key-revoke", acme.key.pk) in shown) is may_revoke


def test_members_and_strangers_find_nothing(acme, client):
    assert acme.client().get(reverse("operate-tenants")).status_code == 404
    assert acme.client().get(page()).status_code == 404
    assert client.get(page()).status_code == 302


def test_credit_is_granted_once_however_often_it_is_sent(root, acme):
    path = page("grant")
    asked = fields_of(
        root, path, amount="1,000.5", kind="paid", reason="invoice 7", paid_amount="4990", currency="eur",
        priority="40",
        expires_at=f"{timezone.now() + timedelta(days=30):%Y-%m-%dT%H:%M}",
    )  # fmt: skip
    for _ in range(2):
        answer = root.post(path, asked, follow=True)
        assert "1,000.5 credits are granted, until" in text_of(answer)
    grant = CreditGrant.objects.get(kind="paid")
    assert (grant.amount, grant.paid_amount, grant.currency, grant.priority) == (1_000_500_000, 4990, "EUR", 40)
    assert grant.expires_at is not None
    event = last_event("credit.granted")
    assert (event.actor, event.after["reason"]) == ("root@example.com", "invoice 7")
    text = text_of(root.get(page("wallet")))
    assert "49.90 EUR paid" in text
    assert page("refund", grant.pk) in text


def test_credit_is_granted_for_some_models(root, acme):
    for name in ("small", "large", "vision"):
        PublicModel.objects.create(name=name, context_length=10)
    path = page("grant")
    asked = {"amount": "2", "kind": "promotional", "reason": "new models", "priority": "50"}
    told = root.post(path, fields_of(root, path, **asked, models=["vision", "large"]), follow=True)
    assert "2 credits are granted" in text_of(told)
    assert CreditGrant.objects.get(restriction="large\nvision").amount == 2_000_000
    assert last_event("credit.granted").after["models"] == ["large", "vision"]
    assert "for large and vision alone" in text_of(root.get(page("wallet")))
    assert "2 more for some models" in text_of(root.get(page("wallet")))
    refused = root.post(path, fields_of(root, path, **asked, models=["small", "large"]))
    assert refused.status_code == 400
    assert "Credit for large, vision alone is left or coming" in text_of(refused)
    assert root.post(path, fields_of(root, path, **asked, models=["nonsense"])).status_code == 400


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"amount": "0"}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({"amount": "much"}, "amount"),
        ({"reason": ""}, "reason"),
        ({"currency": "EUR"}, "paid_amount"),
        ({"paid_amount": "5", "currency": "E1"}, "currency"),
        ({"expires_at": "2001-01-01T00:00"}, "expires_at"),
    ],
)
def test_what_is_wrong_with_a_grant_stands_at_its_field(root, acme, typed, field):
    path, before = page("grant"), CreditGrant.objects.count()
    asked = fields_of(root, path, amount="1", kind="promotional", reason="x", priority="50") | typed
    answer = root.post(path, asked)
    assert answer.status_code == 400
    assert f'id="id_{field}_error"' in text_of(answer)
    assert CreditGrant.objects.count() == before


def test_credit_that_is_to_come_is_granted_told_and_cancelled(root, acme):
    begins, path = timezone.now() + timedelta(days=3), page("grant")
    typed = {"amount": "7", "kind": "goodwill", "reason": "sorry", "priority": "50"}
    asked = fields_of(root, path, begins_at=f"{begins:%Y-%m-%dT%H:%M}", **typed)
    for _ in range(2):
        assert "7 credits are granted from" in text_of(root.post(path, asked, follow=True))
    [one] = ScheduledGrant.objects.filter(kind="goodwill")
    event = last_event("credit.scheduled")
    assert (event.actor, event.after["reason"], event.tenant_id) == ("root@example.com", "sorry", acme.tenant.pk)
    text = text_of(root.get(page("wallet")))
    assert page("scheduled-cancel", one.pk) in text
    assert len(re.findall("/cancel/", text)) == 1, "the plan's next month is none to cancel"
    assert "Goodwill" in text_of(acme.client().get("/billing/"))
    cancel = page("scheduled-cancel", one.pk)
    answer = root.post(cancel, {"reason": "not sorry"}, follow=True)
    assert "won’t begin" in text_of(answer)
    event = last_event("credit.cancelled")
    assert (event.before["amount"], event.after["reason"]) == (7 * MICRO, "not sorry")
    assert root.post(cancel, {"reason": "again"}).status_code == 404


def test_a_recurring_grant_is_made_paused_and_ended(root, acme):
    path = page("recurring")
    asked = fields_of(
        root, path, amount="5", kind="promotional", reason="trial", window="week", rollover="2", windows="1",
        priority="50",
    )  # fmt: skip
    assert 'value="UTC"' in text_of(root.get(path))
    for _ in range(2):
        assert "5 credits each week from" in text_of(root.post(path, {**asked, "time_zone": "UTC"}, follow=True))
    wrong = root.post(path, {**asked, "time_zone": "nowhere", "key": "other"})
    assert (wrong.status_code, 'id="id_time_zone_error"' in text_of(wrong)) == (400, True)
    [one] = RecurringGrant.objects.all()
    assert last_event("recurring_grant.created").after["rollover"] == 2 * MICRO
    assert "each week from" in text_of(acme.client().get("/billing/"))
    for state, word in (("paused", "Resume"), ("active", "Pause"), ("ended", "")):
        act = page("recurring-state", one.pk, state)
        assert f"is {state}." in text_of(root.post(act, {"reason": "because"}, follow=True))
        assert last_event("recurring_grant.changed").after["reason"] == "because"
        assert word in text_of(root.get(page("wallet")))
    assert root.get(page("recurring-state", one.pk, "other")).status_code == 404
    refused = root.post(page("recurring-state", one.pk, "active"), {"reason": "because"})
    assert (refused.status_code, "it has ended; make a new one" in text_of(refused)) == (400, True)


def test_an_invoice_is_paid_and_another_voided(root, acme):
    of_acme = wallet(acme)
    for number in (1, 2):
        ends = timezone.now() - timedelta(days=number)
        Invoice.objects.create(wallet=of_acme, number=number, ends_at=ends, amount=number * MICRO)
    first, second = Invoice.objects.order_by("number")
    assert page("invoice-pay", first.pk) in text_of(root.get(page("wallet")))
    typed = {"paid_amount": "990", "currency": "eur", "reference": "T1"}
    wrong = root.post(page("invoice-pay", first.pk), typed | {"currency": "e1"})
    assert (wrong.status_code, 'id="id_currency_error"' in text_of(wrong)) == (400, True)
    answer = root.post(page("invoice-pay", first.pk), typed, follow=True)
    assert "Invoice 1 is paid, and 1 credits are granted." in text_of(answer)
    assert "Invoice 2 is void." in text_of(root.post(page("invoice-void", second.pk), {"reason": "x"}, follow=True))
    assert last_event("invoice.changed").after["reason"] == "x"
    for text in (text_of(root.get(page("wallet"))), text_of(acme.client().get("/billing/"))):
        assert "9.90 EUR (T1)" in text
    assert page("invoice-pay", second.pk) not in text_of(root.get(page("wallet")))


def test_the_same_by_the_api(root, acme, other):
    api, headers = "/api/v1/operator/tenants/acme/", {"Idempotency-Key": "k"}

    def post(path, body, status=201, client=root, **options):
        answer = client.post(f"{api}{path}", body, content_type="application/json", **options)
        assert answer.status_code == status, answer.content
        return answer.json() if answer.content else {}

    begins = (timezone.now() + timedelta(days=1)).isoformat()
    body = {"amount_micro": 7, "kind": "goodwill", "reason": "sorry"}
    post("grants/", body, 400)
    coming = [post("grants/", body | {"begins_at": begins}, headers=headers) for _ in range(2)][-1]
    assert (coming["is_to_come"], coming["amount"]["credits_micro"]) == (True, 7)
    assert post("grants/", body, headers={"Idempotency-Key": "l"})["is_to_come"] is False
    assert post("grants/", body | {"amount_micro": 8, "begins_at": begins}, 422, headers=headers)["error"]["code"] == (
        "idempotency_key_reused"
    )
    late = post("grants/", body | {"begins_at": "2001-01-01T00:00:00Z"}, 400, headers={"Idempotency-Key": "m"})
    assert late["error"]["param"] == "begins_at"
    refused = post("grants/", body | {"models": ["nobody's"]}, 400, headers={"Idempotency-Key": "o"})
    assert (refused["error"]["param"], "nobody's" in refused["error"]["message"]) == ("models", True)
    PublicModel.objects.create(name="small", context_length=10)
    for key, begun in (("p", {}), ("q", {"begins_at": begins})):
        some = post("grants/", body | {"models": ["small"]} | begun, headers={"Idempotency-Key": key})
        assert (some["models"], some["is_to_come"]) == (["small"], bool(begun))
    assert root.delete(f"{api}grants/{some['id']}/").status_code == 204
    assert [one["is_to_come"] for one in root.get(f"{api}grants/").json()].count(True) == 2  # and the plan's next month
    assert root.delete(f"{api}grants/{coming['id']}/").status_code == 204
    assert root.delete(f"{api}grants/{coming['id']}/").status_code == 404
    body |= {"window": "day", "count": 3, "rollover_micro": 2}
    made = [post("recurring-grants/", body, headers=headers) for _ in range(2)][-1]
    assert (made["state"], made["rollover"]["credits_micro"]) == ("active", 2)
    assert post("recurring-grants/", body | {"time_zone": "no"}, 400, headers={"Idempotency-Key": "n"})["error"][
        "param"
    ] == "time_zone"  # fmt: skip
    one = f"{api}recurring-grants/{made['id']}/"
    ended = root.patch(one, {"state": "ended"}, content_type="application/json").json()
    assert [ended["state"], *(each["state"] for each in root.get(f"{api}recurring-grants/").json())] == ["ended"] * 2
    invoice = Invoice.objects.create(wallet=wallet(acme), number=1, ends_at=timezone.now(), amount=MICRO)
    pay = {"paid_amount": 990, "currency": "EUR", "reference": "T1"}
    assert post(f"invoices/{invoice.pk}/pay/", pay, 200)["state"] == "paid"
    assert post(f"invoices/{invoice.pk}/void/", {"reason": "r"}, 400)["error"]["param"] == "invoice"
    assert [each["number"] for each in root.get(f"{api}invoices/").json()] == [1]
    viewer = browser_of(operator("viewer"))
    assert viewer.get(f"{api}invoices/").status_code == 200
    post("grants/", body, 403, viewer, headers={"Idempotency-Key": "o"})
    assert acme.client().get(f"{api}invoices/").status_code in {401, 403}
    assert root.post(f"/api/v1/operator/tenants/{other.tenant.slug}/invoices/{invoice.pk}/void/").status_code == 404


def test_credit_is_adjusted_and_never_below_what_is_free(root, acme):
    path = page("adjust")
    asked = fields_of(root, path, amount="-30", reason="mistake")
    assert "30 credits were taken away." in text_of(root.post(path, asked, follow=True))
    root.post(path, asked)
    assert wallet(acme).posted == 70 * MICRO
    much = root.post(path, fields_of(root, path, amount="-71", reason="more"))
    assert much.status_code == 400
    assert re.search(r'id="id_amount_error"><li>Only 70 credits are free', text_of(much))
    assert last_event("credit.adjusted").after["credits_micro"] == -30 * MICRO


def test_a_paid_grant_is_refunded_and_another_voided(root, acme):
    paid = credits.grant(
        wallet_id=wallet(acme).pk,
        amount=10 * MICRO,
        kind=CreditGrant.Kind.PAID,
        key="p",
        paid_amount=500,
        currency="EUR",
    )
    path = page("refund", paid.pk)
    assert "5.00 EUR" in text_of(root.get(path))
    missing = root.post(path, {"reason": "unhappy"})
    assert 'id="id_reference_error"' in text_of(missing)
    assert "Between 0 and the 500 that were paid" in text_of(
        root.post(path, {"reason": "r", "reference": "T1", "money": "501"})
    )
    credits.refund(grant_id=paid.pk, key="part", actor="a", reason="r", reference="T0", most=2 * MICRO)
    done = text_of(root.post(path, {"reason": "unhappy", "reference": "T1"}, follow=True))
    assert "8 credits were taken out for 4.00 EUR (T1)." in done
    assert "Refunded" in done
    again = text_of(root.post(path, {"reason": "unhappy", "reference": "T1"}, follow=True))
    assert "8 credits were taken out (T1)." in again
    free = CreditGrant.objects.get(wallet=wallet(acme), kind="plan")
    assert "100 credits were taken back." in text_of(root.post(page("void", free.pk), {"reason": "over"}, follow=True))
    assert wallet(acme).posted == 0
    assert last_event("credit.voided").after["reason"] == "over"


def test_the_wallet_is_frozen_and_opened_for_a_reason(root, acme):
    answer = root.post(page("freeze"), {"reason": "chargeback"}, follow=True)
    assert "Wallet frozen" in text_of(answer)
    assert wallet(acme).state == "frozen"
    event = last_event("wallet.changed")
    assert event.after == {"state": "frozen", "reason": "chargeback"}
    root.post(page("freeze"), {"reason": "paid"})
    assert wallet(acme).state == "open"


def test_the_ledger_turns_pages_with_its_running_balance(root, acme, monkeypatch):
    monkeypatch.setattr(tenant_wallet, "PAGE", 2)
    for number in range(4):
        credits.adjust(wallet_id=wallet(acme).pk, amount=MICRO, key=f"a{number}", actor="x", reason=f"because {number}")
    path, balances, pages = page("wallet"), [], 0
    while path:
        pages += 1
        text = text_of(root.get(path))
        ledger = text[text.index('id="ledger"') :]
        balances += re.findall(r'data-label="Balance after"><data class="amount" value="([^"]*)"', ledger)
        older = re.search(r'href="([^"#]*)#ledger">Older<', text)
        path = older and page("wallet") + older[1].replace("&amp;", "&")
    assert (balances, pages) == (["104", "103", "102", "101", "100"], 3)
    assert root.get(page("wallet"), {"before": "forged"}).status_code == 404


def test_the_plan_is_changed_ended_and_chosen_again(root, acme):
    text = text_of(root.post(page("plan"), {"plan": "business"}, follow=True))
    assert "Acme has Business v1 now." in text
    later = text_of(root.post(page("plan"), {"plan": "free"}, follow=True))
    assert "Free v1 begins on" in later
    assert "Free v1 from" in later
    ended = text_of(root.post(page("end"), {"when": "month", "reason": "left"}, follow=True))
    assert "The subscription ends on" in ended
    assert last_event("subscription.changed").after["reason"] == "left"
    root.post(page("end"), {"when": "now", "reason": "left"})
    assert "no plan: its requests are refused" in text_of(root.get(page()))
    unknown = root.post(page("plan"), {"plan": "max", "time_zone": "Mars/Base"})
    assert 'id="id_time_zone_error"' in text_of(unknown)
    assert "Acme has Max v1 now." in text_of(root.post(page("plan"), {"plan": "max", "time_zone": "UTC"}, follow=True))
    gone = root.post(page("end"), {"when": "now", "reason": "x"})
    assert gone.status_code == 302
    assert "has no active subscription" in text_of(root.post(page("end"), {"when": "now", "reason": "x"}))


def test_who_may_only_change_plans_chooses_no_first_one(acme):
    client = browser_of(operator("billing"))
    plans.end(acme.tenant.pk, at_once=True)
    user = User.objects.get(email="billing@example.com")
    user.groups.get().permissions.remove(Permission.objects.get(codename="add_subscription"))
    assert client.get(page("plan")).status_code == 403
    assert client.post(page("plan"), {"plan": "max", "time_zone": "UTC"}).status_code == 403
    assert not Subscription.objects.filter(tenant=acme.tenant, state="active").exists()


def test_a_tenant_is_suspended_by_its_typed_slug_and_activated(root, acme):
    asked = text_of(root.get(page("suspend")))
    assert "1 keys that work" in asked
    wrong = root.post(page("suspend"), {"reason": "abuse", "typed": "Acme"})
    assert re.search(r'id="id_typed_error"><li>That is something else: type acme', text_of(wrong))
    assert Tenant.objects.get(slug="acme").is_active
    done = text_of(root.post(page("suspend"), {"reason": "abuse", "typed": "acme"}, follow=True))
    assert "Suspended" in done
    assert acme.client().get("/usage/").status_code == 403
    assert last_event("tenant.changed").after == {"is_active": False, "reason": "abuse"}
    root.post(page("activate"), {"reason": "sorry"})
    assert acme.client().get("/usage/").status_code == 200


def test_people_are_invited_change_their_role_and_leave(root, acme):
    text = text_of(root.post(page("invite"), {"email": "new@x.example", "role": "admin"}, follow=True))
    assert re.search(r'data-copy-text="[^"]*/invitations/', text)
    one = Invitation.objects.of(acme.tenant).get(email="new@x.example")
    taken = text_of(root.post(page("withdraw", one.pk), follow=True))
    assert "its link works no more" in taken
    assert not Invitation.objects.of(acme.tenant).filter(pk=one.pk).exists()
    again = root.post(page("invite"), {"email": acme.owner.email, "role": "admin"})
    assert re.search(r'id="id_email_error"><li>This person is a member already', text_of(again))
    last = root.post(page("member", acme.membership.pk), {"role": ""})
    assert re.search(r'id="id_role_error"><li>A tenant needs an owner', text_of(last))
    user = User.objects.create_user("second@x.example")
    second = Membership(tenant=acme.tenant, user=user, role="owner")
    second.save(force_insert=True)
    admin_keys.create_admin_key(tenant=acme.tenant, name="terraform", created_by=user)
    told = text_of(root.post(page("member", second.pk), {"role": "member"}, follow=True))
    assert "second@x.example is member of Acme now." in told
    assert "“terraform” is revoked" in told
    root.post(page("member", second.pk), {"role": ""})
    assert not Membership.objects.of(acme.tenant).get(pk=second.pk).is_active
    assert last_event("membership.changed").actor == "root@example.com"


def test_a_key_is_made_shown_once_renamed_and_revoked(root, acme):
    path = page("key-new")
    asked = {"name": "ci", "project": str(acme.project.pk), "access": "inference", "day_limit": "5"}
    made = root.post(path, asked)
    key = APIKey.objects.of(acme.tenant).get(name="ci")
    assert made.headers["location"] == page("key-made", key.pk)
    shown = root.get(made.headers["location"])
    secret = re.search(r'<code id="secret">(sk-sluice-[^<]*)<', text_of(shown))[1]
    assert secret.endswith(key.last_four)
    assert "no-store" in shown.headers["cache-control"]
    assert secret not in text_of(root.get(made.headers["location"]))
    assert "0 of 5 credits a day" in text_of(root.get(page("keys")))
    wrong = text_of(root.post(path, {**asked, "networks": "nowhere"}))
    assert 'id="id_networks_error"' in wrong
    root.post(page("key-rename", key.pk), {"name": "builds"})
    assert root.post(page("key-revoke", key.pk), {"typed": "ci"}).status_code == 400
    root.post(page("key-revoke", key.pk), {"typed": "builds"})
    assert APIKey.objects.of(acme.tenant).get(pk=key.pk).revoked_at is not None
    assert last_event("key.revoked").actor == "root@example.com"
    assert root.get(page("key-rename", key.pk)).status_code == 404


def test_an_admin_key_is_revoked(root, acme):
    key, _ = admin_keys.create_admin_key(tenant=acme.tenant, name="tf", created_by=acme.owner)
    assert page("admin-key-revoke", key.pk) in text_of(root.get(page("keys")))
    root.post(page("admin-key-revoke", key.pk), {"typed": "tf"})
    assert AdminAPIKey.objects.of(acme.tenant).get(pk=key.pk).revoked_at is not None


def test_projects_are_made_renamed_and_archived(root, acme):
    root.post(page("project-new"), {"name": "research"})
    one = Project.objects.of(acme.tenant).get(name="research")
    taken = root.post(page("project-new"), {"name": "research"})
    assert re.search(r'id="id_name_error"><li>Another project has this name', text_of(taken))
    root.post(page("project-rename", one.pk), {"name": "lab"})
    root.post(page("project-archive", one.pk), {"typed": "lab"})
    assert not Project.objects.of(acme.tenant).get(name="lab").is_active
    last = root.post(page("project-archive", acme.project.pk), {"typed": acme.project.name})
    assert "A tenant keeps a project" in text_of(last)


def test_settings_are_changed_within_the_installations_bounds(root, acme):
    asked = {"name": "Acme & Sons", "response_storage": "forbidden", "hosted_tools": "refuse", "file_days": "3"}
    root.post(page("settings"), asked)
    tenant = Tenant.objects.get(slug="acme")
    assert (tenant.name, tenant.response_storage, tenant.file_days) == ("Acme & Sons", "forbidden", 3)
    much = root.post(page("settings"), {**asked, "file_days": "100000"})
    assert 'id="id_file_days_error"' in text_of(much)
    assert "3 days" in text_of(root.get(page("limits")))


def test_an_export_is_sent_and_stands_in_the_trail(root, acme):
    assert last_event("tenant.exported") is None
    root.get(page("export"))
    assert last_event("tenant.exported") is None
    answer = root.post(page("export"))
    assert answer.headers["content-type"] == "application/zip"
    assert last_event("tenant.exported").actor == "root@example.com"


def test_a_tenant_is_erased_once_what_goes_was_read_and_typed(root, acme, monkeypatch):
    monkeypatch.setattr(erasure, "FELT_AFTER", 0)
    asked = text_of(root.get(page("erase")))
    assert "the account of owner@acme.example, who is in no other tenant" in asked
    assert "it is subscribed to free" in asked
    for typed, field in (({"typed": "acme"}, "force"), ({"typed": "other", "force": "on"}, "typed")):
        answer = root.post(page("erase"), typed)
        assert answer.status_code == 400
        assert f'id="id_{field}_error"' in text_of(answer)
        assert Tenant.objects.get(pk=acme.tenant.pk).is_active
    done = root.post(page("erase"), {"typed": "acme", "force": "on"}, follow=True)
    tenant = Tenant.objects.get(pk=acme.tenant.pk)
    assert tenant.erased_at is not None
    text = text_of(done)
    assert tenant.name in text
    assert "acme" not in text.lower()
    assert page("grant", slug=tenant.slug) not in text
    assert root.get(page("grant", slug=tenant.slug)).status_code == 404


def test_a_tenant_of_which_something_runs_is_not_erased(root, acme, monkeypatch):
    monkeypatch.setattr(erasure, "FELT_AFTER", 0)
    monkeypatch.setattr("control.operate.tenant_acts.WAIT_SECONDS", 0)
    monkeypatch.setattr(erasure, "still_running", lambda _: 2)
    answer = root.post(page("erase"), {"typed": "acme", "force": "on"})
    assert answer.status_code == 400
    assert "2 requests, answers or batches of acme still run" in text_of(answer)
    assert Tenant.objects.get(pk=acme.tenant.pk).erased_at is None


def test_an_operator_sees_a_tenants_pages_and_changes_nothing(acme, other):
    client = browser_of(operator("viewer"))
    assert client.get("/usage/").status_code == 302
    client.post(page("view"))
    assert last_event("tenant.viewed").tenant == acme.tenant
    for path in ("/usage/", "/settings/", "/audit/", "/keys/new/", reverse("console-models")):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "You see <strong>Acme</strong> as its owner does" in text_of(answer)
    assert client.get("/usage/", {"tenant": "other"}).status_code == 404
    before = Tenant.objects.get(pk=acme.tenant.pk)
    changed = client.post("/settings/", {"response_storage": "forbidden", "hosted_tools": "refuse"})
    assert changed.status_code == 403
    assert Tenant.objects.get(pk=acme.tenant.pk).response_storage == before.response_storage
    asked = {"name": "mine", "project": str(acme.project.pk), "access": "inference"}
    assert client.post("/keys/new/", asked).status_code == 403
    assert client.post(reverse("console-key-revoke", args=[acme.key.pk]), {"name": "all"}).status_code == 403
    assert APIKey.objects.of(acme.tenant).get().revoked_at is None


def test_who_looks_reads_nothing_that_members_wrote(acme):
    client = browser_of(operator())
    client.post(page("view"))
    assert client.get("/chat/").status_code == 302
    assert client.get(reverse("console-export")).status_code == 404
    assert client.get(reverse("console-account")).status_code == 403  # data for scripts, where nobody looks
    assert not AuditEvent.objects.unscoped().filter(action="tenant.exported").exists()


def test_looking_ends_by_going_back_by_time_and_with_what_it_needs(acme, monkeypatch):
    user = operator("viewer")
    client = browser_of(user)

    def is_seen():
        return client.get("/usage/").status_code == 200

    client.post(page("view"))
    assert is_seen()
    assert client.post(reverse("operate-view-end")).headers["location"] == page()
    assert not is_seen()
    client.post(page("view"))
    now = viewing.time.time()
    monkeypatch.setattr(viewing, "time", SimpleNamespace(time=lambda: now + viewing.SECONDS + 1))
    assert not is_seen()
    monkeypatch.undo()
    client.post(page("view"))
    Tenant.objects.filter(pk=acme.tenant.pk).update(is_active=False)
    assert not is_seen()
    assert client.post(page("view")).status_code == 400
    Tenant.objects.filter(pk=acme.tenant.pk).update(is_active=True)
    client.post(page("view"))
    user.groups.clear()
    assert not is_seen()
    assert client.post(page("view")).status_code == 403


def test_no_page_lists_all_tenants_or_wallets(root, acme, other):
    for name in ("grant", "adjust", "plan", "invite", "key-new", "settings"):
        text = text_of(root.get(page(name)))
        assert ">Other<" not in text, name
        assert "owner@other.example" not in text
    assert LedgerTransfer.objects.exists()
