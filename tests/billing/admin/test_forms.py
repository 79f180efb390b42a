"""The admin's forms call the services: what they make, and what they refuse."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from base.units import MICRO
from billing.models import CreditGrant, LedgerTransfer, Plan, PlanVersion, RateCard, RateCardVersion, Subscription
from billing.services import cards, credits, plans
from routing.models import PublicModel
from tests.billing.books import assert_books_balance

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def filled(client, url, **values):
    """Return what a browser would send: the form's own values, changed by `values`."""
    form = client.get(url).context["adminform"].form
    data = {}
    for name in form.fields:
        bound = form[name]
        value = bound.field.prepare_value(bound.value()) if hasattr(bound.field, "prepare_value") else bound.value()
        data[name] = "" if value is None or value is False else value
    for name in ("expires_at", "effective_from"):
        if name in data:
            moment = values.pop(name, None)
            data.pop(name)
            data |= {f"{name}_0": f"{moment:%Y-%m-%d}", f"{name}_1": f"{moment:%H:%M:%S}"} if moment else {}
    return {**data, **values}


def send(client, url, data):
    response = client.post(url, data, follow=True)
    assert response.status_code == 200
    context = response.context
    errors = context["adminform"].form.errors if context and "adminform" in context else {}
    return errors, [str(message) for message in context["messages"]]


def test_grant_gives_credit_once_per_form(admin_client, wallet):
    url = f"{reverse('admin:billing_creditgrant_add')}?wallet={wallet.pk}"
    money = {"paid_amount": "999", "currency": "eur"}
    data = filled(admin_client, url, amount="12.5", kind="paid", reason="invoice 7", **money)
    assert data["key"].startswith("admin:")
    for _ in range(2):
        errors, messages = send(admin_client, url, data)
        assert not errors, messages
    grant = CreditGrant.objects.get()
    assert (grant.amount, grant.kind, grant.wallet_id, grant.expires_at) == (12_500_000, "paid", wallet.pk, None)
    assert (grant.paid_amount, grant.currency) == (999, "EUR")
    transfer = LedgerTransfer.objects.get()
    assert (transfer.reason, transfer.actor, transfer.key) == ("invoice 7", "admin@example.com", data["key"])
    assert_books_balance(wallet)
    assert filled(admin_client, url)["key"] != data["key"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", "0"),
        ("amount", "-1"),
        ("amount", "1.2345678"),
        ("amount", "x"),
        ("reason", ""),
        ("paid_amount", "5"),
        ("currency", "EUR"),
        ("currency", "E1"),
    ],
)
def test_grant_refuses_what_is_wrong(admin_client, wallet, field, value):
    url = f"{reverse('admin:billing_creditgrant_add')}?wallet={wallet.pk}"
    data = filled(admin_client, url, **{"amount": "1", "kind": "paid", "reason": "r", field: value})
    errors, _ = send(admin_client, url, data)
    assert set(errors) == {
        {("paid_amount", "5"): "currency", ("currency", "EUR"): "paid_amount"}.get((field, value), field)
    }
    assert not CreditGrant.objects.exists()


def test_grant_refuses_an_expiry_in_the_past(admin_client, wallet):
    url = f"{reverse('admin:billing_creditgrant_add')}?wallet={wallet.pk}"
    past = timezone.now().replace(year=2020)
    errors, _ = send(admin_client, url, filled(admin_client, url, amount="1", kind="paid", reason="r", expires_at=past))
    assert set(errors) == {"expires_at"}


def test_detail_buttons_lead_to_the_forms(admin_client, wallet):
    for action, model in (("grant_credit", "creditgrant"), ("adjust_credit", "ledgertransfer")):
        response = admin_client.get(reverse(f"admin:billing_wallet_{action}", args=[wallet.pk]))
        assert response.url == f"{reverse(f'admin:billing_{model}_add')}?wallet={wallet.pk}"


def test_void_takes_back_the_selected_grants(admin_client, wallet, give):
    made = give(3 * MICRO)
    kept = give(MICRO)
    url = reverse("admin:billing_creditgrant_changelist")
    data = {"action": "void_grants", "_selected_action": [str(made.pk)]}
    _, messages = send(admin_client, url, data)
    assert messages == ["3 credits were taken back."]
    made.refresh_from_db()
    kept.refresh_from_db()
    assert (made.remaining, kept.remaining) == (0, MICRO)
    assert_books_balance(wallet)


def test_adjust_corrects_up_and_down_and_says_what_is_refused(admin_client, wallet):
    url = f"{reverse('admin:billing_ledgertransfer_add')}?wallet={wallet.pk}"
    for amount in ("5", "-2"):
        errors, _ = send(admin_client, url, filled(admin_client, url, correction=amount, reason="typo"))
        assert not errors
    wallet.refresh_from_db()
    assert wallet.posted == 3 * MICRO
    errors, _ = send(admin_client, url, filled(admin_client, url, correction="-4", reason="too much"))
    assert errors == {"__all__": ["4 credits wanted, 3 free"]}
    assert_books_balance(wallet)


def test_publish_version_starts_from_the_last_terms(admin_client, db):
    plans.ensure_default_plans()
    plan = Plan.objects.get(slug="free")
    start = admin_client.get(reverse("admin:billing_plan_publish_new_version", args=[plan.pk]))
    for name in ("one", "two"):
        PublicModel.objects.create(name=name, kinds=["chat"], context_length=10, rate_card="m")
    data = filled(admin_client, start.url, monthly_credits="250", rollover="1.5", allowed_models=["one", "two"])
    errors, messages = send(admin_client, start.url, data)
    assert not errors, messages
    before, after = PlanVersion.objects.filter(plan=plan).order_by("number")
    assert (after.monthly_credits, after.allowed_models) == (250 * MICRO, ["one", "two"])
    assert after.rollover == 1_500_000
    same = set(plans.TERMS) - {"monthly_credits", "allowed_models", "rollover"}
    assert {name: getattr(before, name) for name in same} == {name: getattr(after, name) for name in same}


def test_a_plan_whose_models_were_withdrawn_is_no_plan_for_all_of_them(admin_client, db):
    """The form offered active models alone: with new prices the plan lost its only model, and so included every one."""
    PublicModel.objects.create(name="gone", kinds=["chat"], context_length=10, rate_card="m", is_active=False)
    PublicModel.objects.create(name="dear", kinds=["chat"], context_length=10, rate_card="m")
    plans.ensure_default_plans()
    plan = Plan.objects.get(slug="free")
    plans.publish_version(plan, allowed_models=["gone"])
    start = admin_client.get(reverse("admin:billing_plan_publish_new_version", args=[plan.pk]))
    field = admin_client.get(start.url).context["adminform"].form.fields["allowed_models"]
    data = filled(admin_client, start.url, monthly_credits="250")
    shown = [name for name, _ in field.choices if name in data["allowed_models"]]  # a browser sends no other
    errors, messages = send(admin_client, start.url, {**data, "allowed_models": shown})
    assert not errors, messages
    assert plans.latest_version("free").allowed_models == ["gone"]


def test_a_version_names_only_models_and_tasks_that_exist(admin_client, db):
    plans.ensure_default_plans()
    url = f"{reverse('admin:billing_planversion_add')}?plan={Plan.objects.get(slug='max').pk}"
    data = filled(admin_client, url, allowed_models=["gone"], default_task="chatt")
    errors, _ = send(admin_client, url, data)
    assert set(errors) == {"allowed_models", "default_task"}
    assert PlanVersion.objects.filter(plan__slug="max").count() == 1


@pytest.mark.parametrize("query", ["?plan=", "?plan=x", "?plan=00000000-0000-7000-8000-000000000000"])
def test_an_address_that_names_nothing_opens_an_empty_form(admin_client, db, query):
    """An empty id made the page redirect to itself for ever."""
    assert admin_client.get(reverse("admin:billing_planversion_add") + query).status_code == 200


def test_lists_show_prices(admin_client, db):
    cards.publish("m", {0: {"input": 12_345_000, "output": 40 * MICRO}})
    RateCard.objects.create(name="empty")
    page = admin_client.get(reverse("admin:billing_ratecard_changelist")).content.decode()
    assert "12.345" in page
    assert "no price in force" in page
    assert "12.345" in admin_client.get(reverse("admin:billing_ratecardversion_changelist")).content.decode()
    version = admin_client.get(reverse("admin:billing_ratecardversion_change", args=[RateCardVersion.objects.get().pk]))
    assert "12.345" in version.content.decode()


def test_prices_are_published_on_the_page_of_their_list(admin_client, db):
    card = RateCard.objects.create(name="m")
    led = admin_client.get(reverse("admin:billing_ratecard_publish_new_version", args=[card.pk]))
    assert led.url == reverse("operate-price-new", args=["m"])
    assert admin_client.get(reverse("admin:billing_ratecardversion_add")).status_code == 403


def test_subscribe_and_change_plan(admin_client, tenant):
    plans.ensure_default_plans()
    url = reverse("admin:billing_subscription_add")
    free, business = (Plan.objects.get(slug=slug) for slug in ("free", "business"))
    data = filled(admin_client, url, tenant=str(tenant.pk), plan=str(free.pk))
    errors, _ = send(admin_client, url, data)
    assert not errors
    made = Subscription.objects.get()
    url = reverse("admin:billing_subscription_change", args=[made.pk])
    errors, _ = send(admin_client, url, filled(admin_client, url, plan=str(business.pk)))
    assert not errors
    now = Subscription.objects.get(state="active")
    assert now.version.plan == business
    made.refresh_from_db()
    assert made.state == "ended"
    assert admin_client.post(url, {"plan": str(free.pk)}).status_code == 403


def asked(client, row, action, **given):
    """Look at the page that asks, then send it; return the status and what was said."""
    url = reverse(f"admin:billing_{row._meta.model_name}_{action}", args=[row.pk])
    assert "What follows" in client.get(url).content.decode()
    answer = client.post(url, given, follow=True)
    row.refresh_from_db()
    return answer, [str(message) for message in answer.context["messages"]]


def test_a_wallet_is_frozen_and_opened_with_a_reason(admin_client, wallet):
    refused, _ = asked(admin_client, wallet, "freeze")
    assert (refused.status_code, wallet.state) == (400, "open")
    _, messages = asked(admin_client, wallet, "freeze", reason="stolen card")
    assert (wallet.state, messages) == ("frozen", ["The wallet is frozen: stolen card"])
    assert LogEntry.objects.get().get_change_message() == "The wallet is frozen: stolen card"
    asked(admin_client, wallet, "freeze", reason="solved")
    assert wallet.state == "open"


@pytest.mark.parametrize(("when", "state", "is_ending"), [("month", "active", True), ("now", "ended", False)])
def test_a_subscription_is_ended(admin_client, tenant, when, state, is_ending):
    plans.ensure_default_plans()
    made = plans.subscribe(tenant.pk, "free")
    _, [message] = asked(admin_client, made, "end", when=when, reason="left")
    assert (made.state, made.is_ending) == (state, is_ending)
    assert message.endswith(": left")
    assert LogEntry.objects.get().get_change_message() == message
    again = admin_client.get(reverse("admin:billing_subscription_end", args=[made.pk]))
    assert again.status_code == (200 if is_ending else 302)


def test_a_refund_keeps_money_and_reference(admin_client, wallet, give):
    made = give(3 * MICRO, kind="paid", paid_amount=300, currency="EUR")
    refused, _ = asked(admin_client, made, "refund", reference="re_1", reason="r", money="301")
    assert refused.status_code == 400
    assert refused.context["form"].errors == {"money": ["between 0 and the 300 that were paid and not paid back"]}
    credits.refund(grant_id=made.pk, key="part", actor="a", reason="r", reference="re_0", most=MICRO)
    _, [message] = asked(admin_client, made, "refund", reference="re_1", reason="unhappy", money="")
    assert message == "2 credits were taken out for 200 EUR (re_1): unhappy"
    assert (made.remaining, made.refunded_amount, made.refund_reference) == (0, 300, "re_1")
    assert LedgerTransfer.objects.filter(code=LedgerTransfer.Code.REFUND).latest("id").actor == "admin@example.com"
    refused, _ = asked(admin_client, made, "refund", reference="re_2", reason="again")
    assert (refused.status_code, made.refund_reference) == (400, "re_1")
    assert_books_balance(wallet)


def test_only_what_was_paid_for_is_refunded(admin_client, give):
    url = reverse("admin:billing_creditgrant_refund", args=[give(5).pk])
    answer = admin_client.get(url, follow=True)
    assert [str(message) for message in answer.context["messages"]] == [
        "Nothing was paid for this grant: void it instead."
    ]
