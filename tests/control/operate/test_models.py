"""The operator's catalogue, and the wizard that adds a model step by step."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django_scopes import scopes_disabled

from base.sealing import unseal
from base.units import MICRO
from billing.models import PlanMove, RateCard, UsageDay
from billing.selectors.prices import prices_at
from billing.services import cards, plan_moves
from billing.services.plans import latest_version, publish_version, subscribe
from fleet import fetches
from routing.models import Deployment, Fetch, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tenancy.models import AuditEvent, Tenant, User
from tenancy.services.roles import ensure_roles
from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.django_db
LONG = "a-model-with-a-very-long-name-" * 4


def signed_in(email, group=""):
    user = User.objects.create_superuser(email) if not group else User.objects.create_user(email, is_staff=True)
    if group:
        ensure_roles()
        user.groups.add(*type(user).groups.rel.model.objects.filter(name=group))
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def operator(terms):
    return signed_in("root@example.com")


def fake(name="small", *, card="small", kinds=("chat",), **more):
    if card:
        cards.ensure_card(card, "chat")
    row = add_model(
        name=name, kinds=kinds, context_length=8192, rate_card=card, source="", backend="fake", options={}, **more
    )
    return row.model


def rule_to(*models, name="general", **more):
    rule = RouteRule.objects.create(name=name, **more)
    for model in models:
        RouteTarget.objects.create(rule=rule, model=model)
    return rule


def text_of(answer):
    return " ".join(answer.content.decode().split())


def test_the_catalogue_tells_traffic_price_state_plans_and_auto(operator):
    model, other = fake(), fake("idle")
    rule_to(model)
    model.cost_input, model.cost_output = 4 * MICRO, 10 * MICRO
    model.save()
    today = timezone.now().date()
    sums = {"requests": 30, "input_tokens": MICRO, "cache_read_tokens": 0, "output_tokens": MICRO, "charge": 50 * MICRO}
    UsageDay.objects.create(day=today, model="small", **sums)
    UsageDay.objects.create(day=today, model="gone", **sums | {"requests": 70})
    page = text_of(operator.get(reverse("operate-models")))
    row = page[page.index(f"/operate/models/{model.pk}/") :]
    for told in ("30.0 %", "10", "out 40", "14", "margin 72 %", "2 of 3", "yes", "by “general”"):
        assert told in row, told
    assert "no rule leads to it" in page[page.index(f"/operate/models/{other.pk}/") :]
    assert "No model of this name" in text_of(operator.get(reverse("operate-models"), {"q": "nothing"}))


def test_a_page_of_models_asks_as_much_as_one_model(operator):
    fake(LONG[:120])
    rule_to(fake(), name="one")

    def queries(path):
        with CaptureQueriesContext(connection) as found:
            assert operator.get(path).status_code == 200
        return len(found)

    names = ["operate-models", "operate-prices", "operate-plans", "operate-routing"]
    queries(reverse("operate-now"))  # notes that the session is in use
    before = {name: queries(reverse(name)) for name in names}
    for number in range(12):
        rule_to(fake(f"m{number}", card=f"card{number}"), name=f"rule {number}", priority=number)
        publish_version(latest_version("free").plan, concurrency=number + 1)
    assert {name: queries(reverse(name)) for name in names} == before
    assert max(before.values()) <= 15, before


def test_roles_see_and_change_what_is_theirs(operator, acme):
    model = fake()
    viewer, billing = signed_in("v@example.com", "viewer"), signed_in("b@example.com", "billing")
    assert viewer.get(reverse("operate-model", args=[model.pk])).status_code == 200
    assert "Add a model" not in text_of(viewer.get(reverse("operate-models")))
    for name in ("operate-model-new", "operate-model-new-remote", "operate-price-list-new", "operate-plan-new"):
        assert viewer.get(reverse(name)).status_code == 403
    for name in ("operate-model-edit", "operate-model-withdraw", "operate-model-price"):
        assert billing.get(reverse(name, args=[model.pk])).status_code == 403
    assert billing.get(reverse("operate-price-new", args=["small"])).status_code == 200
    assert acme.client().get(reverse("operate-models")).status_code == 404
    with scopes_disabled():
        assert Client().get(reverse("operate-models")).status_code == 302


def test_a_model_is_changed_and_withdrawn_with_its_name(operator):
    model, spare = fake(), fake("spare")
    rule = rule_to(model)
    edit = reverse("operate-model-edit", args=[model.pk])
    form = {
        "kinds": ["chat"],
        "context_length": "4096",
        "rate_card": "small",
        "description": "Small.",
        "cost_input": "1.5",
    }
    assert operator.post(edit, {**form, "context_length": "0"}).status_code == 400
    assert operator.post(edit, form).status_code == 302
    model.refresh_from_db()
    assert (model.context_length, model.description, model.cost_input) == (4096, "Small.", 1_500_000)
    with scopes_disabled():
        event = AuditEvent.objects.filter(action="model.changed").latest("at")
    assert event.after["cost_input"] == 1_500_000
    withdraw = reverse("operate-model-withdraw", args=[model.pk])
    page = text_of(operator.get(withdraw))
    assert "have no other model, and get one that fits: general" in page
    assert operator.post(withdraw, {"name": "smal"}).status_code == 400
    assert operator.post(withdraw, {"name": "small"}).status_code == 302
    assert not PublicModel.objects.get(pk=model.pk).is_active
    assert rule.targets.filter(model=spare).exists()
    assert "withdrawn" in text_of(operator.get(reverse("operate-models"), {"view": "withdrawn"}))


# -- the wizard --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """What a fetch finds; it tells two steps and a weight meanwhile."""
    found = {"name": "found", "folder": str(tmp_path), "kinds": ["chat"], "context_length": 2048}

    def fetch(source, tell, progress):
        tell("downloading it from the hub")
        progress(5_000_000)
        found["seen"] = Fetch.objects.values("state", "doing", "bytes").get()
        return found

    monkeypatch.setattr("fleet.local_models._fetch", fetch)
    return found


def work():
    fetches.Fetches(start=lambda act: act()).step()


def test_a_source_is_fetched_by_the_jobs_and_becomes_a_model_without_a_price(operator, fetched):
    new = reverse("operate-model-new")
    assert operator.post(new, {"source": "  "}).status_code == 400
    answer = operator.post(new, {"source": "acme/found", "quantization": "w8a8"})
    fetch = Fetch.objects.get()
    assert answer.url == reverse("operate-model-fetch", args=[fetch.pk])
    waiting = text_of(operator.get(answer.url))
    assert 'hx-trigger="every 2s"' in waiting
    assert "begins it within seconds" in waiting
    assert "acme/found" in text_of(operator.get(reverse("operate-models")))
    assert "is being fetched already" in text_of(operator.post(new, {"source": "acme/found"}))
    work()
    assert fetched["seen"] == {"state": "running", "doing": "downloading it from the hub", "bytes": 5_000_000}
    model = PublicModel.objects.get(name="found")
    assert operator.get(answer.url).url == reverse("operate-model-proof", args=[model.pk])
    polled = operator.get(answer.url, headers={"hx-request": "true"})
    assert polled.headers["hx-redirect"] == reverse("operate-model-proof", args=[model.pk])
    assert (model.rate_card, model.deployments.get().options) == ("", {"quantization": "w8a8"})
    assert not RateCard.objects.filter(name="found").exists()
    with scopes_disabled():
        assert AuditEvent.objects.get(action="fetch.created").actor == "root@example.com"


def test_a_fetch_that_fails_says_why_and_is_tried_again_or_stopped(operator, fetched, monkeypatch):
    fake("found")
    operator.post(reverse("operate-model-new"), {"source": "acme/found"})
    fetch = Fetch.objects.get()
    page = reverse("operate-model-fetch", args=[fetch.pk])
    work()
    told = text_of(operator.get(page))
    assert "There is a model &#x27;found&#x27;: give another name" in told
    assert "every 2s" not in told
    operator.post(page, {})
    assert Fetch.objects.get().state == "waiting"

    went_on = []

    def stopped(source, tell, progress):
        operator.post(page, {"stop": "1"})
        tell("goes on")
        went_on.append(source)

    monkeypatch.setattr("fleet.local_models._fetch", stopped)
    work()
    assert (Fetch.objects.get().state, went_on) == ("stopped", [])
    assert "It was stopped" in text_of(operator.get(page))


def test_a_fetch_whose_worker_was_lost_is_begun_anew(operator, fetched):
    fetch = fetches.ask(source="acme/found")
    Fetch.objects.update(state="running", lease_until=timezone.now() + fetches.LEASE)
    work()
    assert not PublicModel.objects.exists()
    Fetch.objects.update(lease_until=timezone.now() - fetches.LEASE)
    work()
    fetch.refresh_from_db()
    assert (fetch.state, fetch.model.name, fetch.name) == ("done", "found", "found")


@pytest.mark.parametrize("does", ["tells", "comes to its end", "fails"])
def test_a_fetch_that_another_process_took_over_is_left_by_the_first(operator, fetched, monkeypatch, does):
    fetches.ask(source="acme/found")
    taken, went_on = [], []

    def late(source, tell, progress):
        """Come back after another process has taken the fetch over."""
        Fetch.objects.update(lease_until=timezone.now() - fetches.LEASE)
        taken.append(fetches._claimed())
        if does == "tells":
            tell("goes on")
            went_on.append(source)
        if does == "fails":
            raise OSError("no route to the hub")
        return fetched

    monkeypatch.setattr("fleet.local_models._fetch", late)
    work()
    fetch = Fetch.objects.get()
    assert (fetch.state, fetch.doing, fetch.refusal, fetch.lease_until) == ("running", "", "", taken[0].lease_until)
    assert (went_on, PublicModel.objects.count()) == ([], 0)


@pytest.fixture
def upstream(settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with serving_in_thread(Upstream("vllm")) as server:
        server.key = "sk-hidden"
        yield server


def test_a_foreign_server_lists_its_models_and_gives_one_without_a_price(operator, upstream):
    new = reverse("operate-model-new-remote")
    wrong = operator.post(new, {"address": upstream.address, "dialect": "generic", "api_key": "no", "list": "1"})
    assert "wants another key" in text_of(wrong)
    form = {"address": upstream.address, "list": "1"}  # what the page asks for at first
    listed = operator.post(new, {**form, "api_key": upstream.key})
    page = text_of(listed)
    assert f'value="{MODEL}" checked' in page
    assert "8,192 tokens of context" in page
    assert upstream.key not in page
    kept = listed.context["form"]["kept_key"].value()
    chosen = {"address": upstream.address, "dialect": "vllm", "kept_key": kept, "model": MODEL, "name": "big"}
    elsewhere = operator.post(new, {**chosen, "address": f"{upstream.address}/v1"})
    assert "401" in text_of(elsewhere)  # the kept key is for the address that it was entered for
    answer = operator.post(new, chosen)
    row = Deployment.objects.get()
    assert answer.url == reverse("operate-model-proof", args=[row.model.pk])
    assert (row.model.name, row.model.rate_card, unseal(row.credential)) == ("big", "", upstream.key)
    assert not RouteRule.objects.exists()
    page = text_of(operator.get(answer.url))
    assert "Test prompt (chat)" in page
    assert 'hx-trigger="every 3s"' in page


def test_an_address_that_no_setting_allows_names_the_setting_and_its_value(operator, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["10.0.0.0/8"]
    form = {"address": "http://127.0.0.1:8000", "dialect": "vllm", "model": "m"}
    for sent in (form, {**form, "list": "1"}):
        answer = operator.post(reverse("operate-model-new-remote"), sent)
        [error] = answer.context["form"].errors["address"]
        assert "Set SLUICE_REMOTE_NETWORKS=10.0.0.0/8,127.0.0.0/8 in the environment" in error


PRICE = {"how": "own", "name": "mine", "input": "3", "output": "12"}


def test_a_price_is_chosen_and_never_the_default_one(operator):
    model = fake(card="")
    page = reverse("operate-model-price", args=[model.pk])
    assert operator.get(page).context["form"]["input"].value() is None
    refused = operator.post(page, {"how": "own", "name": "mine"})
    assert set(refused.context["form"].errors) == {"input", "output"}
    assert operator.post(page, {"how": "card"}).context["form"].errors.keys() == {"card"}
    answer = operator.post(page, {**PRICE, "cost_input": "1", "cost_output": "3", "request_fee": "0.01"})
    assert answer.url == reverse("operate-model-plans", args=[model.pk])
    model.refresh_from_db()
    card = prices_at(timezone.now())["mine"]
    assert (model.rate_card, model.cost_output, card.request_fee) == ("mine", 3 * MICRO, 10_000)
    assert card.tiers[0].rates["cache_read"] == 3 * MICRO
    again = operator.post(page, PRICE)
    assert "there is a price list of this name" in str(again.context["form"].errors["name"])
    other = fake("other", card="")
    assert (
        operator.post(reverse("operate-model-price", args=[other.pk]), {"how": "card", "card": "mine"}).status_code
        == 302
    )
    assert PublicModel.objects.get(pk=other.pk).rate_card == "mine"


def test_a_plan_gets_the_model_and_its_tenants_move(operator, acme):
    model = fake()
    tenant = Tenant.objects.create(name="On free", slug="on-free")
    subscribe(tenant.pk, "free")
    page = reverse("operate-model-plans", args=[model.pk])
    shown = text_of(operator.get(page))
    assert shown.count("checked disabled") == 2  # business and max have every model
    answer = operator.post(page, {"plan": ["free", "nothing"], "move": "1"})
    assert answer.url == reverse("operate-model-rules", args=[model.pk])
    assert "small" in latest_version("free").allowed_models
    assert PlanMove.objects.get().only_adds
    while plan_moves.turn():
        pass
    assert tenant.subscriptions.get(state="active").version == latest_version("free")
    assert text_of(operator.get(page)).count("checked disabled") == 3


def test_rules_are_led_to_the_model_with_a_weight_and_away_again(operator):
    first, model = fake("first"), fake()
    rule = rule_to(first)
    page = reverse("operate-model-rules", args=[model.pk])
    wrong = operator.post(page, {"rule": [rule.pk], f"weight_{rule.pk}": "0"})
    assert "a weight is a whole number" in text_of(wrong)
    answer = operator.post(page, {"rule": [rule.pk], f"weight_{rule.pk}": "3"})
    assert answer.url == reverse("operate-model-live", args=[model.pk])
    assert dict(rule.targets.values_list("model__name", "weight")) == {"first": 1, "small": 3}
    operator.post(page, {f"had_{rule.pk}": "1"})
    assert list(rule.targets.values_list("model__name", flat=True)) == ["first"]


def test_without_a_rule_the_usual_ones_are_offered(operator):
    model = fake()
    page = reverse("operate-model-rules", args=[model.pk])
    assert "Make the usual rules" in text_of(operator.get(page))
    operator.post(page, {"defaults": "1"})
    assert RouteRule.objects.get().targets.get().model == model


def test_the_end_says_whether_auto_uses_it_and_what_a_thousand_tokens_cost(operator):
    model = fake(card="")
    page = reverse("operate-model-live", args=[model.pk])
    told = text_of(operator.get(page))
    assert "No rule that is on leads to it" in told
    assert "It has no price in force" in told
    cards.publish("mine", {0: {"input": 3 * MICRO, "output": 12 * MICRO}})
    PublicModel.objects.update(rate_card="mine", cost_input=MICRO, cost_output=3 * MICRO)
    rule = rule_to(model)
    told = text_of(operator.get(page))
    assert "Rule “general” matched" in told
    assert (
        '<data class="amount" value="0.003" title="0.003 credits">0.003</data></strong> credits, of which you pay'
        in told
    )
    assert "margin 67 %" in told
    assert "margin 75 %" in told
    rule_to(fake("first"), name="before all", priority=1)
    told = text_of(operator.get(page))
    assert "first is taken: Rule “before all” matched" in told
    rule.delete()
    assert "No rule that is on leads to it" in text_of(operator.get(page))


def test_each_step_is_left_and_come_back_to(operator):
    model = fake(card="")
    steps = ["proof", "price", "plans", "rules", "live"]
    for step in steps:
        page = text_of(operator.get(reverse(f"operate-model-{step}", args=[model.pk])))
        for other in steps:
            assert (f'<a href="{reverse(f"operate-model-{other}", args=[model.pk])}"' in page) or other == step
    assert operator.get(reverse("operate-model-price", args=[model.pk])).context["steps"][2].is_done is False
    operator.post(reverse("operate-model-price", args=[model.pk]), PRICE)
    assert operator.get(reverse("operate-model-plans", args=[model.pk])).context["steps"][2].is_done


def test_a_models_bars_lead_to_its_requests_of_the_day(operator):
    model, today = fake("a b"), timezone.now().date()
    sums = {"requests": 3, "input_tokens": 1, "cache_read_tokens": 0, "output_tokens": 1, "charge": 1}
    UsageDay.objects.create(day=today, model=model.name, **sums)
    page = text_of(operator.get(reverse("operate-model", args=[model.pk])))
    since, until = f"{today}T00%3A00%3A00Z", f"{today + timedelta(days=1)}T00%3A00%3A00Z"
    address = f"{reverse('operate-requests')}?model=a+b&amp;since={since}&amp;until={until}"
    assert f'href="{address}"' in page
    assert operator.get(address.replace("&amp;", "&")).context["asked"].model == "a b"
