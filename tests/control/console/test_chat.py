"""The chat page's server side: who may open it, what it may pick, what it says of the account."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client

from base.units import MICRO
from billing.models import PlanVersion, Wallet
from billing.services import plans
from routing.services.catalogue import add_model
from tenancy.models import Membership, Project, Tenant, User

pytestmark = pytest.mark.django_db
CARDS = {"smollm2-135m-instruct": "smollm2-135m-instruct", "all-minilm-l6-v2": "all-minilm-l6-v2", "large": "none"}


@pytest.fixture
def models(terms):
    for name, kind in (("smollm2-135m-instruct", "chat"), ("all-minilm-l6-v2", "embedding"), ("large", "chat")):
        add_model(name=name, kinds=[kind], context_length=2048, rate_card=CARDS[name], source="", backend="fake")


def data_of(response):
    found = re.search(r'<script id="chat-data" type="application/json">(.*?)</script>', response.content.decode())
    return json.loads(found[1])


def test_strangers_are_asked_to_sign_in():
    response = Client().get("/chat/")
    assert response.status_code == 302
    assert response.url.startswith("/accounts/login/")


def test_scripts_of_strangers_get_a_401_instead_of_a_page():
    response = Client().get("/chat/account/")
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "not_signed_in"


@pytest.mark.parametrize("role", ["owner", "admin", "member"])
def test_those_who_may_chat_see_the_page(people, role):
    response = people(role).get("/chat/")
    assert response.status_code == 200
    assert "no-store" in response["cache-control"]


def test_billing_goes_home(people):
    response = people("billing").get("/chat/")
    assert response.status_code == 302
    assert response.url == "/"


def test_a_user_without_tenant_is_told_so(terms):
    client = Client()
    client.force_login(User.objects.create_user("alone@x.example"), backend="django.contrib.auth.backends.ModelBackend")
    for path in ("/chat/", "/usage/", "/keys/new/"):
        response = client.get(path)
        assert response.status_code == 403
        assert "belong to no tenant" in response.content.decode()
    assert client.get("/chat/account/").status_code == 403


def test_an_operator_without_tenant_goes_to_their_pages(terms):
    client = Client()
    operator = User.objects.create_superuser("operator@x.example")
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/").url == "/operate/"


def test_only_active_projects_can_be_picked(acme, people):
    Project(tenant=acme.tenant, name="Old", is_active=False).save(force_insert=True)
    Project(tenant=acme.tenant, name="Second").save(force_insert=True)
    names = [project["name"] for project in data_of(people("member").get("/chat/"))["projects"]]
    assert names == ["Default", "Second"]


def test_models_are_those_of_the_plan_that_chat_with_their_prices(acme, models):
    found = data_of(acme.client().get("/chat/"))["models"]
    assert [model["id"] for model in found] == ["auto", "smollm2-135m-instruct"]  # free: not "large"
    assert found[0]["pricing"] is None
    assert found[0]["context_length"] == 2048


def test_a_classifier_can_be_picked_since_it_answers_chats_with_labels(acme, models):
    add_model(name="sorter", kinds=["classification"], context_length=512, rate_card="none", source="", backend="fake")
    acme.tenant.subscriptions.update(
        version=plans.publish_version(plans.latest_version("free").plan, allowed_models=[])
    )
    found = {model["id"]: model["kinds"] for model in data_of(acme.client().get("/chat/"))["models"]}
    assert list(found) == ["auto", "large", "smollm2-135m-instruct", "sorter"]
    assert found["sorter"] == ["classification"]


def test_prices_have_the_plans_multiplier(acme, models):
    free = plans.latest_version("free")
    terms = {name: getattr(free, name) for name in plans.TERMS}

    def price():
        return data_of(acme.client().get("/chat/"))["models"][1]["pricing"]["tiers"][0]["credits_per_million"]

    before = {name: float(value) for name, value in price().items()}
    plans.publish_version(free.plan, **{**terms, "multiplier_bp": 20_000})
    acme.tenant.subscriptions.update(version=PlanVersion.objects.latest("created_at"))
    assert {name: float(value) for name, value in price().items()} == {
        name: pytest.approx(2 * value) for name, value in before.items()
    }


def test_the_account_says_what_is_left_and_whom_to_ask(acme, people):
    found = people("member").get("/chat/account/").json()
    assert found["available_micro"] == 100 * MICRO
    assert found["available"] == "100"
    assert found["next_grant"] == "100"
    assert found["next_grant_at"] > acme.tenant.created_at.isoformat()
    assert found["owners"] == [acme.owner.email]
    assert acme.client().get("/chat/account/").json()["owners"] == []


def test_what_is_held_is_not_available(acme):
    Wallet.objects.filter(tenant=acme.tenant).update(held=1_500_000)
    response = acme.client().get("/chat/")
    assert data_of(response)["account"]["available_micro"] == 98_500_000
    assert ">98.5</strong>" in response.content.decode()


def test_a_tenant_without_subscription_has_no_models(acme, models):
    acme.tenant.subscriptions.update(state="ended")
    data = data_of(acme.client().get("/chat/"))
    assert data["models"] == []
    assert data["account"]["next_grant"] is None


def test_several_tenants_are_switched_by_the_address(acme, other, people):
    client = people("member", other.tenant)
    assert data_of(client.get("/chat/"))["tenant"] == "acme"
    response = client.get("/chat/?tenant=other")
    data = data_of(response)
    assert data["tenant"] == "other"
    assert data["projects"][0]["id"] == str(other.project.id)
    assert data["urls"]["account"] == "/chat/account/?tenant=other"
    page = response.content.decode()
    assert 'href="/usage/?tenant=other"' in page
    assert 'href="?tenant=acme"' in page


@pytest.mark.parametrize("path", ["/chat/", "/usage/", "/usage/export.csv", "/chat/account/", "/keys/new/"])
def test_another_tenant_cannot_be_named(acme, other, path):
    assert acme.client().get(path, {"tenant": "other"}).status_code == 404
    assert acme.client().get(path, {"tenant": "nobody"}).status_code == 404


def test_a_member_who_was_removed_is_out_at_once(acme, people):
    client = people("member")
    assert client.get("/chat/").status_code == 200
    Membership.objects.of(acme.tenant).filter(role="member").update(is_active=False)
    assert client.get("/chat/").status_code == 403
    Membership.objects.of(acme.tenant).filter(role="member").update(is_active=True)
    Tenant.objects.filter(id=acme.tenant.id).update(is_active=False)
    assert client.get("/chat/").status_code == 403


def test_the_page_obeys_the_strict_policy(acme, models):
    response = acme.client().get("/chat/")
    page = response.content.decode()
    nonce = re.search(r"'nonce-([^']+)'", response["content-security-policy"])[1]
    assert f'<script type="importmap" nonce="{nonce}">' in page
    scripts = re.findall(r"<script(?![^>]*(?:src=|application/json|nonce=))", page)
    assert not scripts
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", page)


def test_queries_are_few(acme, models, django_assert_num_queries):
    client = acme.client()
    client.get("/chat/")
    Project(tenant=acme.tenant, name="Second").save(force_insert=True)
    with django_assert_num_queries(15):  # no runtime here: 8 of them read catalogue and prices
        client.get("/chat/")
    with django_assert_num_queries(7):
        client.get("/chat/account/")
