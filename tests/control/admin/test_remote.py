"""Remote engines in the operator's admin: added by a form, tested by a button, their keys written and never shown."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.urls import reverse

from base.sealing import unseal
from routing.models import Deployment
from tenancy.models import User
from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.django_db
ADD = "/admin/routing/deployment/add-remote/"


@pytest.fixture
def operator(db, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    client = Client()
    client.force_login(
        User.objects.create_superuser("root@example.com"), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client


@pytest.fixture
def upstream():
    with serving_in_thread(Upstream("vllm")) as server:
        server.key = "sk-hidden"
        yield server


def filled(upstream, **changes):
    form = {"address": upstream.address, "dialect": "vllm", "model": MODEL, "name": "big", "kinds": ["chat"]}
    return form | {"api_key": upstream.key, "rate_card": ""} | changes


def added(operator, upstream):
    page = operator.post(ADD, filled(upstream), follow=True)
    assert page.status_code == 200
    return Deployment.objects.get(), page.content.decode()


def test_the_form_opens_from_the_list(operator):
    assert ADD in operator.get(reverse("admin:routing_deployment_changelist")).content.decode()
    assert "Test and add" in operator.get(ADD).content.decode()


def test_a_filled_form_ends_in_a_test_prompt_with_its_cost(operator, upstream):
    row, page = added(operator, upstream)
    assert (row.name, row.model.name, row.source) == ("big-vllm", "big", upstream.address)
    assert "test prompt (chat)" in page
    assert "0.00034 credits" in page
    assert upstream.key not in page
    assert row.credential not in page


def test_a_refusal_stands_beside_its_field_and_nothing_is_stored(operator, upstream):
    page = operator.post(ADD, filled(upstream, dialect="tgi"))
    assert page.status_code == 400
    assert "shares its prefix cache between tenants" in page.content.decode()
    page = operator.post(ADD, filled(upstream, api_key="sk-wrong"))
    assert "401" in page.content.decode()
    assert not Deployment.objects.exists()


def test_viewers_may_not(operator, upstream):
    viewer = Client()
    user = User.objects.create_user("viewer@example.com", is_staff=True)
    viewer.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert viewer.post(ADD, filled(upstream)).status_code == 403
    assert not upstream.seen


def test_the_button_tests_again(operator, upstream):
    row, _ = added(operator, upstream)
    path = f"/admin/routing/deployment/{row.pk}/test-prompt/"
    assert path in operator.get(reverse("admin:routing_deployment_change", args=[row.pk])).content.decode()
    assert "0.00034 credits" in operator.post(path, follow=True).content.decode()
    upstream.key = "sk-new"
    assert "401" in operator.post(path, follow=True).content.decode()


def test_opening_the_address_of_a_test_prompt_sends_none(operator, upstream):
    row, _ = added(operator, upstream)
    path, before = f"/admin/routing/deployment/{row.pk}/test-prompt/", len(upstream.seen)
    assert "Send it" in operator.get(path).content.decode()
    guarded = Client(enforce_csrf_checks=True)
    guarded.force_login(User.objects.get(), backend="django.contrib.auth.backends.ModelBackend")
    assert guarded.post(path).status_code == 403
    assert len(upstream.seen) == before


def changed(row, **changes):
    form = {"name": row.name, "model": row.model.pk, "backend": "openai", "source": row.source}
    form |= {"weight": 1, "replicas-TOTAL_FORMS": 0, "replicas-INITIAL_FORMS": 0}
    return form | {"options": json.dumps(row.options), "is_active": "on", "api_key": ""} | changes


def test_a_key_is_kept_replaced_and_forgotten(operator, upstream):
    row, _ = added(operator, upstream)
    page = reverse("admin:routing_deployment_change", args=[row.pk])
    for change, key in (({}, "sk-hidden"), ({"api_key": "sk-2"}, "sk-2"), ({"forget_api_key": "on"}, "")):
        assert operator.post(page, changed(row, **change)).status_code == 302
        row.refresh_from_db()
        assert unseal(row.credential) == key


def test_a_key_does_not_follow_to_a_new_address(operator, upstream):
    row, _ = added(operator, upstream)
    page = reverse("admin:routing_deployment_change", args=[row.pk])
    refused = operator.post(page, changed(row, source="http://10.6.6.6:8000"))
    assert "The address is new" in refused.content.decode()
    assert operator.post(page, changed(row, source="http://10.6.6.6:8000", api_key="sk-3")).status_code == 302


def test_wrong_options_are_refused_by_name(operator, upstream):
    row, _ = added(operator, upstream)
    page = reverse("admin:routing_deployment_change", args=[row.pk])
    options = json.dumps(row.options | {"dialect": "generic"})
    assert "shared_prefixes" in operator.post(page, changed(row, options=options)).content.decode()
    assert "address:" in operator.post(page, changed(row, source="file:///etc/passwd")).content.decode()
