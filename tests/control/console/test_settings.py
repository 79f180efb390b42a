"""What a tenant decides for itself: on its page, and by the management API."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client

from tenancy.models import AuditEvent, Project, Tenant

pytestmark = pytest.mark.django_db

PAGE, API = "/settings/", "/api/v1/tenant/"


def storage_of(party):
    return Tenant.objects.get(id=party.tenant.id).response_storage


def changes_of(party):
    events = AuditEvent.objects.of(party.tenant).filter(action="tenant.changed")
    return [(event.actor, event.before, event.after) for event in events]


def patch(client, body, **headers):
    return client.patch(API, json.dumps(body), content_type="application/json", headers=headers)


def test_an_owner_decides_whether_responses_are_stored(acme):
    client = acme.client()
    assert PAGE in client.get("/usage/").content.decode()
    assert 'value="on_request" id="id_response_storage_1" required checked' in client.get(PAGE).content.decode()
    answer = client.post(PAGE, {"response_storage": "forbidden", "hosted_tools": "refuse"}, follow=True)
    assert "The settings are saved." in answer.content.decode()
    assert storage_of(acme) == "forbidden"
    change = ("owner@acme.example", {"response_storage": "on_request"}, {"response_storage": "forbidden"})
    assert changes_of(acme) == [change]


def test_an_owner_decides_what_becomes_of_hosted_tools(acme):
    client = acme.client()
    client.post(PAGE, {"response_storage": "on_request", "hosted_tools": "leave_out"})
    changes = [({"hosted_tools": "refuse"}, {"hosted_tools": "leave_out"})]
    assert [(before, after) for _, before, after in changes_of(acme)] == changes
    changed = patch(client, {"hosted_tools": "refuse"}).json()
    assert (changed["hosted_tools"], changed["response_storage"]) == ("refuse", "on_request")


def fields_of(page):
    """Return what a browser would send of the form: hidden fields and chosen ones."""
    text = page.content.decode()
    hidden = re.findall(r'<input type="hidden" name="(initial-[^"]+)" value="([^"]*)"', text)
    return dict(hidden) | {name: value for name, value in page.context["form"].initial.items() if value is not None}


def test_two_who_change_different_settings_undo_nothing_of_each_other(acme, people):
    first, second = acme.client(), people("admin")
    seen = [fields_of(client.get(PAGE)) for client in (first, second)]
    assert len(seen[0]) == 4
    first.post(PAGE, {**seen[0], "response_storage": "forbidden"})
    second.post(PAGE, {**seen[1], "hosted_tools": "leave_out"})
    tenant = Tenant.objects.get(id=acme.tenant.id)
    assert (tenant.response_storage, tenant.hosted_tools) == ("forbidden", "leave_out")


def test_an_owner_keeps_rows_for_fewer_days(acme):
    client = acme.client()
    settings = {"response_storage": "on_request", "hosted_tools": "refuse"}
    assert 'name="file_days" placeholder="30" min="1" max="30"' in client.get(PAGE).content.decode()
    client.post(PAGE, {**settings, "file_days": "7"})
    assert Tenant.objects.get(id=acme.tenant.id).file_days == 7
    client.post(PAGE, {**fields_of(client.get(PAGE)), "file_days": "", "initial-file_days": "7"})
    changes = [({"file_days": None}, {"file_days": 7}), ({"file_days": 7}, {"file_days": None})]
    assert [(before, after) for _, before, after in reversed(changes_of(acme))] == changes
    assert patch(client, {"response_days": 1, "batch_days": None}).json()["response_days"] == 1


def test_the_management_api_says_and_changes_it(acme, people):
    shown = Client(headers=acme.bearer).get(API).json()
    assert (shown["slug"], shown["response_storage"]) == ("acme", "on_request")
    changed = patch(people("admin"), {"response_storage": "by_default"})
    assert (changed.status_code, changed.json()["response_storage"]) == (200, "by_default")
    assert storage_of(acme) == "by_default"
    assert [actor for actor, _, _ in changes_of(acme)] == ["admin@acme.example"]


@pytest.mark.parametrize("role", ["member", "billing"])
def test_others_may_not(acme, people, role):
    client = people(role)
    assert PAGE not in client.get("/usage/").content.decode()
    assert client.get(PAGE).status_code == client.post(PAGE, {"response_storage": "forbidden"}).status_code == 404
    assert patch(client, {"response_storage": "forbidden"}).status_code == 403
    assert patch(Client(), {"response_storage": "forbidden"}, **acme.bearer).status_code == 403
    assert storage_of(acme) == "on_request"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "response_storage"),
        ({"response_storage": "sometimes"}, "response_storage"),
        ({"hosted_tools": "run"}, "hosted_tools"),
        ({"name": "Mine"}, "name"),
        ({"file_days": 31}, "file_days"),
        ({"refusal_days": 0}, "refusal_days"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(acme, body, field):
    client = acme.client()
    refused = patch(client, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert client.post(PAGE, body).status_code == 400
    assert storage_of(acme) == "on_request"
    assert not changes_of(acme)


def projects(party):
    return dict(Project.objects.of(party.tenant).values_list("name", "is_active"))


def test_a_project_is_made_renamed_and_archived_by_its_name(acme):
    client = acme.client()
    assert "“Side” is there" in client.post("/settings/projects/", {"name": "Side"}, follow=True).content.decode()
    side = Project.objects.of(acme.tenant).get(name="Side")
    path = f"/settings/projects/{side.id}/"
    assert path in client.get(PAGE).content.decode()
    assert client.post(path, {"name": "Default"}).status_code == 400
    assert client.post(path, {"name": "Aside"}).status_code == 302
    assert client.post(f"{path}archive/", {"typed": "Side"}).status_code == 400
    assert projects(acme) == {"Default": True, "Aside": True}
    assert client.post(f"{path}archive/", {"typed": "Aside"}).status_code == 302
    assert projects(acme) == {"Default": True, "Aside": False}
    assert client.get(path).status_code == 404


def test_the_last_project_stays_and_no_name_comes_twice(acme):
    client = acme.client()
    answer = client.post(f"/settings/projects/{acme.project.id}/archive/", {"typed": "Default"})
    assert answer.status_code == 400
    assert "make another one first" in answer.content.decode()
    for name, told in (("Default", "Another project has this name."), (" ", "A project needs a name.")):
        assert told in client.post("/settings/projects/", {"name": name}, follow=True).content.decode()
    assert projects(acme) == {"Default": True}


@pytest.mark.parametrize("role", ["member", "billing"])
def test_others_make_no_project(acme, people, role):
    client = people(role)
    assert client.post("/settings/projects/", {"name": "Mine"}).status_code == 404
    assert client.post(f"/settings/projects/{acme.project.id}/", {"name": "Mine"}).status_code == 404
    assert projects(acme) == {"Default": True}


def test_an_owner_gives_the_tenant_another_name(acme, people):
    client = acme.client()
    page = client.post("/settings/name/", {"name": " Acme & Sons "}, follow=True).content.decode()
    assert "The tenant is called Acme &amp; Sons now" in page
    acme.tenant.refresh_from_db()
    assert (acme.tenant.name, acme.tenant.slug) == ("Acme & Sons", "acme")
    [event] = AuditEvent.objects.of(acme.tenant).filter(action="tenant.changed")
    assert (event.actor, event.before, event.after) == (
        acme.owner.email, {"name": "Acme"}, {"name": "Acme & Sons"},
    )  # fmt: skip
    for wrong in ("", " ", "x" * 121):
        assert 'class="error"' in client.post("/settings/name/", {"name": wrong}, follow=True).content.decode()
    for role in ("admin", "member", "billing"):
        assert people(role).post("/settings/name/", {"name": "Mine"}).status_code == 404
    acme.tenant.refresh_from_db()
    assert acme.tenant.name == "Acme & Sons"
