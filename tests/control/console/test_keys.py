"""API keys on the tenant's pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from django.contrib.sessions.models import Session

from control.made_keys import COOKIE
from tenancy.models import AdminAPIKey, APIKey, Membership
from tenancy.services import keys
from tenancy.services.keys import digest_of

pytestmark = pytest.mark.django_db

SECRET = re.compile(r"sk-sluice-[\w-]{43}")


def wanted(party, **changes):
    return {"name": "ci", "project": str(party.project.id), "access": "inference", **changes}


def made(party):
    return APIKey.objects.of(party.tenant).filter(name="ci")


def test_a_key_is_shown_once(acme):
    client = acme.client()
    answer = client.post("/keys/new/", wanted(acme, expires="2099-01-02"))
    key = made(acme).get()
    assert (answer.status_code, answer.url) == (302, f"/keys/{key.id}/made/")
    cookie = answer.cookies[COOKIE]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", answer.url)
    response = client.get(answer.url)
    (secret,) = set(SECRET.findall(response.content.decode()))
    assert "no-store" in response["cache-control"]
    assert "no-store" in answer["cache-control"]
    again = client.get(answer.url)  # what loading the page again does
    assert secret not in again.content.decode()
    assert "was shown already" in again.content.decode()
    assert made(acme).count() == 1
    assert not any(secret in str(row) for row in Session.objects.values())
    assert key.digest == digest_of(secret)
    assert key.created_by == acme.owner
    assert key.scopes == ["inference"]
    assert key.expires_at == datetime(2099, 1, 2, tzinfo=UTC)
    page = client.get("/keys/").content.decode()
    assert secret not in page
    assert f"{key.prefix}…{key.last_four}" in page


def test_a_secret_is_shown_on_its_own_keys_page_alone(acme, other):
    client = acme.client()
    answer = client.post("/keys/new/", wanted(acme))
    cookie = answer.cookies[COOKIE].value
    for path, owner in ((f"/keys/{acme.key.id}/made/", acme), (answer.url, other)):
        reader = owner.client()
        reader.cookies[COOKIE] = cookie
        assert not SECRET.search(reader.get(path).content.decode())
    client.cookies[COOKIE] = cookie[:-2] + "xx"
    assert not SECRET.search(client.get(answer.url).content.decode())


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"access": ""},
        {"access": "everything"},
        {"access": "nothing"},
        {"expires": "2001-01-01"},
        {"expires": "soon"},
    ],
    ids=str,
)
def test_what_is_wrong_is_told(acme, changes):
    response = acme.client().post("/keys/new/", wanted(acme, **changes))
    assert response.status_code == 400
    assert "errorlist" in response.content.decode()
    assert not made(acme).exists()


def test_members_make_keys_for_inference_only(acme, people):
    client = people("member")
    assert "management" not in client.get("/keys/new/").content.decode()
    assert client.post("/keys/new/", wanted(acme, access="nothing", management="on")).status_code == 400
    assert not made(acme).exists()
    assert client.post("/keys/new/", wanted(acme)).status_code == 302
    assert made(acme).get().scopes == ["inference"]


def test_billing_makes_no_keys(acme, people):
    client = people("billing")
    assert client.get("/keys/new/").status_code == 404
    assert client.post("/keys/new/", wanted(acme)).status_code == 404
    assert not made(acme).exists()
    assert "Create key" not in client.get("/keys/").content.decode()


def test_a_project_of_others_is_refused(acme, other):
    response = acme.client().post("/keys/new/", wanted(acme, project=str(other.project.id)))
    assert response.status_code == 400
    assert not made(acme).exists()
    assert not APIKey.objects.of(other.tenant).filter(name="ci").exists()


def test_revoking_needs_the_name(acme):
    client = acme.client()
    path = f"/keys/{acme.key.id}/revoke/"
    assert client.get(path).status_code == 200
    assert client.post(path, {"name": "al"}).status_code == 400
    acme.key.refresh_from_db(from_queryset=APIKey.objects.of(acme.tenant))
    assert acme.key.revoked_at is None
    response = client.post(path, {"name": "all"})
    assert response.status_code == 302
    assert response.url == "/keys/"
    acme.key.refresh_from_db(from_queryset=APIKey.objects.of(acme.tenant))
    assert acme.key.revoked_at is not None
    page = client.get("/keys/").content.decode()
    assert "is revoked: within a second" in page
    assert "</svg>revoked</span>" in page
    assert client.get(path).status_code == 404


@pytest.mark.django_db
def test_an_admin_keys_name_has_no_nul(acme):
    answer = acme.client().post("/keys/admin/", {"name": "a\x00b"})
    assert answer.status_code == 400
    assert "A name has no NUL character" in answer.content.decode()
    assert not AdminAPIKey.objects.of(acme.tenant).exists()


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("admin", True), ("member", False), ("billing", False)])
def test_who_may_revoke_keys_of_others(acme, people, role, may):
    client = people(role)
    path = f"/keys/{acme.key.id}/revoke/"
    assert (path in client.get("/keys/").content.decode()) is may
    assert client.get(path).status_code == (200 if may else 404)
    client.post(path, {"name": "all"})
    assert (APIKey.objects.of(acme.tenant).get(id=acme.key.id).revoked_at is not None) is may


def test_members_revoke_their_own(acme, people):
    client = people("member")
    member = Membership.objects.of(acme.tenant).get(role="member").user
    key, _ = keys.create_key(
        tenant=acme.tenant, project=acme.project, name="mine", scopes=["inference"], created_by=member
    )
    assert client.post(f"/keys/{key.id}/revoke/", {"name": "mine"}).status_code == 302


def test_keys_of_others_are_unknown(acme, other):
    assert acme.client().post(f"/keys/{other.key.id}/revoke/", {"name": "all"}).status_code == 404
    assert APIKey.objects.of(other.tenant).get(id=other.key.id).revoked_at is None
    assert acme.client().post(f"/keys/{acme.key.id}/revoke/?tenant=other", {"name": "all"}).status_code == 404
    assert APIKey.objects.of(acme.tenant).get(id=acme.key.id).revoked_at is None


def test_many_keys_are_found_and_paged_those_that_work_first(acme, monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr("control.console.keys.PAGE", 4)
    made = [
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"key {number}", scopes=["inference"])[0]
        for number in range(6)
    ]
    for key in made[4:]:
        keys.revoke_key(tenant=acme.tenant, key=key)
    client = acme.client()

    def named(page):
        return re.findall(r">(key \d|all)</(?:a|span)>", page.partition("<tbody>")[2])

    first = client.get("/keys/").content.decode()
    older = re.search(r'href="(/keys/\?before=[^"]*)">Older', first)[1]
    second = client.get(older).content.decode()
    assert (named(first), named(second)) == (["key 3", "key 2", "key 1", "key 0"], ["all", "key 5", "key 4"])
    assert "Newer" in second
    assert "Older" not in second
    assert named(client.get("/keys/", {"q": "key 2"}).content.decode()) == ["key 2"]
    assert "key 3" in named(client.get("/keys/", {"q": f"…{made[3].last_four}"}).content.decode())
    assert named(client.get("/keys/", {"state": "ended"}).content.decode()) == ["key 5", "key 4"]
    with django_assert_max_num_queries(15):
        client.get("/keys/")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/usage/models/?tenant=acme", "/models/?tenant=acme"),
        ("/usage/batches/", "/batches/"),
        (
            "/usage/batches/01990000-0000-7000-8000-000000000000/cancel/",
            "/batches/01990000-0000-7000-8000-000000000000/cancel/",
        ),
    ],
)
def test_bookmarks_of_before_lead_on(acme, before, now):
    answer = acme.client().get(before)
    assert (answer.status_code, answer.url) == (301, now)
