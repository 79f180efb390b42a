"""Addresses and forms with ids that are none: the admin says that there is no such row, and no page breaks."""

from __future__ import annotations

import pytest
from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import ForeignKey
from django.urls import reverse

import control.urls  # noqa: F401 - registers the tables, of which a case is made each
from billing.admin.base import RowsAdmin
from tenancy.models import APIKey, Tenant

pytestmark = pytest.mark.django_db

ADMINS = sorted((one for one in admin.site._registry.values() if isinstance(one, RowsAdmin)), key=str)
NO_ID = "no-such-id"


@pytest.fixture
def operator(admin_client):
    admin_client.raise_request_exception = False  # a page that breaks is a 500 here, as for the operator
    return admin_client


@pytest.mark.parametrize("one", ADMINS, ids=str)
def test_no_page_of_an_id_that_is_none_breaks(operator, one):
    named = [url.name for url in one.get_urls() if url.name and "<path:object_id>" in str(url.pattern)]
    assert named
    for name in named:
        address = reverse(f"admin:{name}", args=[NO_ID])
        for answer in (operator.get(address), operator.post(address)):
            assert answer.status_code < 500, address


@pytest.mark.parametrize("one", ADMINS, ids=str)
def test_no_action_upon_an_id_that_is_none_breaks(operator, one):
    name = f"admin:{one.opts.app_label}_{one.opts.model_name}_changelist"
    for action in ("delete_selected", *(getattr(own, "__name__", own) for own in one.actions or ())):
        answer = operator.post(reverse(name), {"action": action, ACTION_CHECKBOX_NAME: [NO_ID]})
        assert answer.status_code < 500, action


@pytest.mark.parametrize("one", ADMINS, ids=str)
def test_no_form_that_begins_with_an_id_that_is_none_or_is_sent_with_one_breaks(operator, one):
    address = reverse(f"admin:{one.opts.app_label}_{one.opts.model_name}_add")
    names = {field.name for field in one.opts.fields if isinstance(field, ForeignKey)}
    names |= set(getattr(one, "add_form", forms.Form).base_fields)  # moments too
    for name in names:
        for answer in (operator.get(address, {name: NO_ID}), operator.post(address, {name: NO_ID})):
            assert answer.status_code < 500, name


def test_who_asks_for_a_row_that_there_is_not_is_told_on_the_page_they_are_led_to(operator):
    answer = operator.get(reverse("admin:gateway_tenant_change", args=[NO_ID]), follow=True)
    assert answer.status_code == 200
    assert f"tenant with ID “{NO_ID}” doesn’t exist" in answer.content.decode()


def test_an_unknown_tenants_page_is_not_found_and_its_action_says_why(operator, acme):
    assert operator.get(reverse("admin:gateway_tenant_deactivate_one", args=[NO_ID])).status_code == 404
    listed, chosen = reverse("admin:gateway_apikey_changelist"), [str(acme.key.pk), NO_ID]
    answer = operator.post(listed, {"action": "revoke", ACTION_CHECKBOX_NAME: chosen}, follow=True)
    assert f"There is no API key “{NO_ID}”: nothing was done." in answer.content.decode()
    assert APIKey.objects.unscoped().get(pk=acme.key.pk).revoked_at is None
    assert Tenant.objects.get(pk=acme.tenant.pk).is_active
