"""The operator's admin: every page opens, lists within a fixed number of queries, and writes go through services."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

import control.urls  # noqa: F401 - registers the tables, of which a case is made each
from base.ids import uuid7
from billing.models import RateCard, Subscription, Wallet
from billing.services import cards, plans
from billing.services.budgets import SpendLimits
from gateway.runtime.models import RefusalCount
from routing.catalogue import load
from routing.models import Deployment, PublicModel
from tenancy.models import APIKey, Invitation, Membership, Project, Tenant, User
from tenancy.services import keys, tenants
from tenancy.services.mail import queue_mail
from tenancy.services.restrictions import spending_of
from tests.gateway.post import sent_mail

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(db):
    client = Client()
    user = User.objects.create_superuser("root@example.com")
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


INLINE = re.compile(r"""<style|<script(?![^>]*\ssrc=)|<[^>]*\s(?:style|on\w+)=""")  # the policy stops these
MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_every_list_and_form_opens_and_has_nothing_inline(operator, acme, model):
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    row = model._base_manager.first()
    pages = [operator.get(reverse(f"{name}_changelist"), {"q": "a"}), operator.get(reverse(f"{name}_add"))]
    if row is not None:
        pages.append(operator.get(reverse(f"{name}_change", args=[row.pk])))
    assert [page.status_code for page in pages if page != pages[1]] == [200] * (len(pages) - 1)
    assert pages[1].status_code in (200, 403)
    for page in pages:
        assert "'unsafe" not in page.headers["content-security-policy"]
        assert INLINE.findall(page.content.decode()) == []


def test_the_first_page_leads_to_the_lists(operator, acme):
    page = operator.get(reverse("admin:index")).content.decode()
    for model in (Tenant, APIKey, Wallet, Deployment):
        options = model._meta
        assert f'href="{reverse(f"admin:{options.app_label}_{options.model_name}_changelist")}"' in page


def test_a_list_of_fifty_rows_is_small(operator, terms):
    """With Unfold it had 320 kB."""
    for number in range(50):
        slug = f"t{number}"
        tenants.create_tenant(name=slug.title(), slug=slug, owner_email=f"{number}@x.example", plan="free")
    page = operator.get(reverse("admin:gateway_tenant_changelist"))
    assert page.content.count(b'name="_selected_action"') == 50
    assert len(page.content) < 80_000


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gateway_tenant", 4),
        ("gateway_project", 4),
        ("gateway_apikey", 4),
        ("gateway_membership", 4),
        ("routing_deployment", 6),  # its replicas and their nodes,
        ("routing_publicmodel", 7),  # the prices in force are two
    ],
)
def test_list_pages_take_a_fixed_number_of_queries(operator, terms, name, count, django_assert_num_queries):
    for number in range(4):
        made = tenants.create_tenant(
            name=f"T{number}", slug=f"t{number}", owner_email=f"{number}@x.example", plan="free"
        )
        keys.create_key(tenant=made.tenant, project=made.project, name="k")
        user = User.objects.create_user(f"{number}@y.example")
        Membership(tenant=made.tenant, user=user).save()
        model = PublicModel.objects.create(name=f"m{number}", context_length=10, rate_card="x")
        Deployment.objects.create(name=f"d{number}", model=model)
    operator.get(reverse("admin:index"))  # notes that the session is in use
    with django_assert_num_queries(count):
        assert operator.get(reverse(f"admin:{name}_changelist")).status_code == 200


def test_the_list_of_mail_shows_no_text(operator, db):
    made = queue_mail(to="a@x.example", subject="Join", text="https://here/secret")
    for name, arguments in (("changelist", []), ("change", [made.pk])):
        page = operator.get(reverse(f"admin:gateway_outgoingmail_{name}", args=arguments)).content.decode()
        assert "Join" in page
        assert "sealed" not in page
        assert "secret" not in page


def test_strangers_and_members_stay_out(acme):
    page = Client().get(reverse("admin:index"))
    assert page.status_code == 302
    assert page.headers["location"].startswith(reverse("admin:login"))
    assert Client().get(page.headers["location"]).headers["location"].startswith(reverse("account_login"))
    assert acme.client().get(reverse("admin:index")).status_code == 302
    assert acme.client().get(reverse("admin:login")).status_code == 403


def test_new_tenant_is_made_whole(operator, terms):
    form = {"name": "New", "slug": "new", "owner_email": "boss@new.example", "plan": "business"}
    response = operator.post(reverse("admin:gateway_tenant_add"), form, follow=True)
    tenant = Tenant.objects.get(slug="new")
    assert Project.objects.of(tenant).get().name == "Default"
    assert Wallet.objects.get(tenant=tenant).posted > 0
    assert Subscription.objects.get(tenant=tenant).version.plan.slug == "business"
    assert Invitation.objects.of(tenant).get().role == "owner"
    address = re.search(r"http\S+/invitations/\S+/", sent_mail()[0].body).group()
    assert address in response.content.decode()
    again = operator.post(reverse("admin:gateway_tenant_add"), form)
    assert again.status_code == 200
    assert "already exists" in again.content.decode()


def test_refusals_are_found_by_request_and_filtered(operator, acme, other):
    minute = timezone.now().replace(second=0, microsecond=0)
    last = {}
    for party, code in ((acme, "rate_limit_exceeded"), (other, "credit_balance_exhausted")):
        last[code] = uuid7()
        counted = {"tenant": party.tenant, "api_key": party.key, "code": code, "model": "small", "count": 1234}
        RefusalCount(
            id=uuid7(), minute=minute, status=429, last_request=last[code], last_at=minute, **counted
        ).save(force_insert=True)  # fmt: skip
    listed = reverse("admin:gateway_refusalcount_changelist")

    def shown(**query):
        text = operator.get(listed, query).content.decode()
        return "(429)" in text and "1,234" in text, str(acme.key) in text, str(other.key) in text

    assert shown() == (True, True, True)
    assert shown(q=f"chatcmpl-{last['rate_limit_exceeded'].hex}") == (True, True, False)
    another = uuid7(int(minute.timestamp() * 1000))  # of the same minute
    assert shown(q=str(another)) == (True, True, True)
    assert shown(q=str(acme.tenant.id)) == (True, True, False)
    assert shown(q="other") == (True, False, True)
    assert shown(code="credit_balance_exhausted") == (True, False, True)
    assert shown(model="small", tenant__id__exact=str(acme.tenant.id)) == (True, True, False)
    tomorrow = (minute + timedelta(days=1)).date().isoformat()
    assert shown(minute_from=tomorrow) == (False, False, False)
    assert shown(minute_from=minute.date().isoformat(), minute_to=minute.date().isoformat()) == (True, True, True)


def test_key_is_shown_once(operator, acme):
    form = {"name": "made", "project": str(acme.project.id), "scopes": ["inference"]}
    answer = operator.post(reverse("admin:gateway_apikey_add"), {**form, "expires_at_0": "", "expires_at_1": ""})
    assert answer.status_code == 302
    page = operator.get(answer.url)
    assert "no-store" in page.headers["cache-control"]
    assert "was shown already" in operator.get(answer.url).content.decode()
    assert APIKey.objects.of(acme.tenant).filter(name="made").count() == 1
    secret = re.search(r"sk-sluice-[\w-]{43}", page.content.decode()).group()
    assert 'data-copy="#made-secret"' in page.content.decode()
    key = APIKey.objects.of(acme.tenant).get(digest=keys.digest_of(secret))
    assert (key.scopes, key.tenant) == (["inference"], acme.tenant)
    later = operator.get(reverse("admin:gateway_apikey_change", args=[key.pk])).content.decode()
    assert secret not in later
    assert key.last_four in later


def test_a_new_key_has_the_limits_that_were_chosen(operator, acme):
    form = {"name": "bot", "project": str(acme.project.pk), "scopes": ["inference"], "networks": "192.0.2.0/24"}
    wrong = operator.post(reverse("admin:gateway_apikey_add"), {**form, "request_limit": "0", "day_limit": "much"})
    assert {"request_limit", "day_limit"} == set(wrong.context["adminform"].form.errors)
    limits = {"request_limit": "9", "credit_limit": "0.5", "concurrency": "2", "day_limit": "0", "month_limit": "12.5"}
    operator.post(reverse("admin:gateway_apikey_add"), {**form, **limits})
    key = APIKey.objects.of(acme.tenant).get(name="bot")
    assert (key.request_limit, key.credit_limit, key.concurrency) == (9, 500_000, 2)
    assert spending_of(key).limits == SpendLimits(0, 12_500_000, None)
    assert key.networks == ["192.0.2.0/24"]


def test_a_new_keys_project_is_named_with_its_tenant(operator, acme, other):
    chosen = {"app_label": "gateway", "model_name": "apikey", "field_name": "project"}
    found = operator.get(reverse("admin:autocomplete"), chosen).json()["results"]
    assert sorted(row["text"] for row in found) == ["Acme · Default", "Other · Default"]
    refused = operator.post(reverse("admin:gateway_apikey_add"), {"project": str(acme.project.id)}).content.decode()
    assert "Acme · Default" in refused
    assert "Other · Default" not in refused


def test_a_tenants_new_key_is_for_its_own_active_projects(operator, acme, other):
    ended = Project.objects.create(tenant=acme.tenant, name="Ended", is_active=False)
    leads = operator.get(reverse("admin:gateway_tenant_new_key", args=[acme.tenant.pk]))
    page = operator.get(leads.url).content.decode()
    assert re.findall(r"<option[^>]*>\s*([^<]*?)\s*</option>", page) == ["---------", "Acme · Default"]
    assert f'value="{acme.project.id}" selected' in page
    form = {"name": "made", "scopes": ["inference"], "expires_at_0": "", "expires_at_1": ""}
    for project in (other.project, ended):
        assert operator.post(leads.url, {**form, "project": str(project.id)}).status_code == 200
    assert operator.post(leads.url, {**form, "project": str(acme.project.id)}).status_code == 302


def test_amounts_are_grouped_and_times_have_seconds_and_zone(operator, acme):
    Wallet.objects.filter(tenant=acme.tenant).update(posted=1_234_567_500_000)
    Tenant.objects.filter(pk=acme.tenant.pk).update(created_at=datetime(2026, 3, 1, 12, 4, 5, tzinfo=UTC))
    page = operator.get(reverse("admin:gateway_tenant_changelist")).content.decode()
    assert "1,234,567.5" in page
    assert "1 Mar 2026, 12:04:05 UTC" in page


def test_revoke_action(operator, acme):
    operator.post(
        reverse("admin:gateway_apikey_changelist"), {"action": "revoke", "_selected_action": [str(acme.key.pk)]}
    )
    assert APIKey.objects.of(acme.tenant).get().revoked_at is not None


def test_deactivating_a_tenant_says_what_ends_and_asks(operator, acme, other):
    chosen = [str(acme.tenant.pk), str(other.tenant.pk)]
    listed = reverse("admin:gateway_tenant_changelist")
    both = operator.post(listed, {"action": "deactivate", "_selected_action": chosen}, follow=True)
    assert "one tenant at a time" in both.content.decode()
    asked = operator.post(listed, {"action": "deactivate", "_selected_action": chosen[:1]}, follow=True)
    text = asked.content.decode()
    assert "1 active API key, 1 member and 0 open invitations" in text
    path = asked.redirect_chain[-1][0]
    assert operator.post(path, {"slug": "other"}).status_code == 400
    operator.post(reverse("admin:gateway_tenant_change", args=chosen[:1]), {"name": "Acme"})  # a box left unticked
    assert Tenant.objects.filter(is_active=True).count() == 2
    done = operator.post(path, {"slug": "acme"}, follow=True).content.decode()
    assert "Acme is deactivated: 1 keys, 1 members and 0 open invitations are refused now" in done
    assert not Tenant.objects.get(pk=acme.tenant.pk).is_active
    assert "deactivated already" in operator.get(path, follow=True).content.decode()
    back = operator.post(listed, {"action": "activate", "_selected_action": chosen}, follow=True).content.decode()
    assert "Acme can go on" in back
    assert Tenant.objects.get(pk=acme.tenant.pk).is_active


def test_last_owner_is_kept(operator, acme):
    path = reverse("admin:gateway_membership_change", args=[acme.membership.pk])
    page = operator.post(path, {"role": "member", "is_active": "on"}, follow=True)
    assert "needs an owner" in page.content.decode()
    assert Membership.objects.of(acme.tenant).get().role == "owner"


def test_nothing_is_deleted(operator, acme):
    for model in (Tenant, User, Project, APIKey, Membership):
        row = model._base_manager.first()
        path = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_delete", args=[row.pk])
        assert operator.post(path, {"post": "yes"}).status_code == 403


def test_a_model_takes_only_a_rate_card_that_has_a_price(operator, db):
    """Any name was taken: the model was ready everywhere and answered 503."""
    cards.publish("priced", {0: {"input": 1, "output": 1}})
    RateCard.objects.create(name="empty")
    url = reverse("admin:routing_publicmodel_add")
    data = {"name": "m", "kinds": ["chat"], "context_length": "100", "description": "", "is_active": "on"}
    for wrong in ("", "empty", "unknown"):
        page = operator.post(url, {**data, "rate_card": wrong})
        assert set(page.context["adminform"].form.errors) == {"rate_card"}
    assert operator.post(url, {**data, "rate_card": "priced"}).status_code == 302
    assert (PublicModel.objects.get().rate_card, PublicModel.objects.get().kinds) == ("priced", ["chat"])


def test_an_alias_is_a_name_that_no_model_has(operator, db):
    PublicModel.objects.create(name="small", kinds=["chat"], context_length=100, rate_card="x")
    url = reverse("admin:routing_modelalias_add")
    for wrong in ({"name": "small", "target": "auto"}, {"name": "gpt-4o", "target": "none"}):
        assert operator.post(url, wrong).status_code == 200
    for target in ("small", "auto"):
        assert operator.post(url, {"name": f"gpt-{target}", "target": target}).status_code == 302
    assert load().aliases == {"gpt-small": "small", "gpt-auto": "auto"}
    assert "gpt-auto" in operator.get(reverse("admin:routing_modelalias_changelist")).content.decode()


def test_a_renamed_model_tells_whose_plans_and_keys_name_it_by_its_former_name(operator, acme):
    """Nothing was said, and their requests were refused."""
    cards.publish("priced", {0: {"input": 1, "output": 1}})
    model = PublicModel.objects.create(name="old", kinds=["chat"], context_length=100, rate_card="priced")
    url = reverse("admin:routing_publicmodel_change", args=[model.pk])

    def renamed(name):
        data = {"name": name, "kinds": ["chat"], "context_length": "100", "rate_card": "priced", "is_active": "on"}
        page = operator.post(url, {**data, "description": ""}, follow=True)
        return [str(told) for told in page.context["messages"] if told.level_tag == "warning"]

    assert renamed("new") == []
    plans.publish_version(plans.latest_version("free").plan, allowed_models=["new"])
    acme.key.allowed_models = ["new", "other"]
    acme.key.save()
    [told] = renamed("newer")
    assert told.startswith("What still names new may not use newer: plan Free and 1 key.")
    assert renamed("newer") == []
