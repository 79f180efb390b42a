"""Whatever people do to access, credit and prices stands in the audit trail, written with the change itself."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import Group
from django.core.cache import cache
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.models import CreditGrant, Plan, Wallet
from billing.services import cards, credits, plans, wallets
from routing.models import Deployment
from routing.services.catalogue import add_model, remove_model
from tenancy.audit import sign_ins
from tenancy.models import AuditEvent, Project, User
from tenancy.services import keys, links, members, roles, tenants
from tests.gateway.post import move
from tests.parties import PASSWORD

pytestmark = [pytest.mark.money, pytest.mark.django_db]
BACKEND = "django.contrib.auth.backends.ModelBackend"


def trail():
    return AuditEvent.objects.unscoped()


@pytest.fixture
def seen(acme):
    """Return a function that tells what was recorded since it was last asked."""
    last = [max(trail().values_list("id", flat=True))]

    def since():
        found = list(trail().filter(id__gt=last[0]).order_by("id"))
        last[0] = found[-1].id if found else last[0]
        return found

    return since


def token_of(address):
    return address.rstrip("/").rpartition("/")[2]


def wallet_of(party):
    return Wallet.objects.get(tenant=party.tenant)


def membership_of(party, email="new@acme.example", role="member"):
    _, address = members.invite_member(tenant=party.tenant, email=email, role=role)
    return members.accept_invitation(token=token_of(address), password=PASSWORD)


def grant(party, **more):
    more = {"actor": "root@example.com", "reason": "sorry", **more}
    return credits.grant(
        wallet_id=wallet_of(party).id, amount=5, kind=CreditGrant.Kind.PROMOTIONAL, key="audited", **more
    )


def rename_key(party):
    party.key.name = "renamed"
    party.key.save(update_fields=["name"])


def switch_off(party):
    add_model(name="m", kinds=["chat"], context_length=10, rate_card="x", source="", backend="fake")
    remove_model("m")


def change_terms(party):
    plans.change_plan(party.tenant.id, "business")
    plans.change_plan(party.tenant.id, "free")


VERBS = {
    "key made": (lambda p: keys.create_key(tenant=p.tenant, project=p.project, name="k"), ["key.created"]),
    "key renamed": (rename_key, ["key.changed"]),
    "key revoked": (lambda p: keys.revoke_key(tenant=p.tenant, key=p.key), ["key.revoked"]),
    "invited": (lambda p: members.invite_member(tenant=p.tenant, email="x@x.example"), ["invitation.created"]),
    "joined": (
        membership_of,
        ["invitation.created", "user.created", "invitation.accepted", "membership.created"],
    ),
    "role": (
        lambda p: members.change_role(tenant=p.tenant, membership=membership_of(p), role="billing"),
        [..., "membership.changed"],
    ),
    "removed": (
        lambda p: members.remove_member(tenant=p.tenant, membership=membership_of(p)),
        [..., "membership.changed"],
    ),
    "project": (lambda p: tenants.create_project(tenant=p.tenant, name="Second"), ["project.created"]),
    "suspended": (lambda p: tenants.deactivate_tenant(tenant=p.tenant), ["tenant.changed"]),
    "address": (lambda p: move(p.owner, "n@acme.example"), ["user.changed"]),
    "link": (lambda p: links.mint_link(user=p.owner), ["sign_in_link.created"]),
    "second factor": (lambda p: TOTP.activate(p.owner, generate_totp_secret()), ["second_factor.created"]),
    "grant": (grant, ["credit.granted"]),
    "void": (
        lambda p: credits.void(grant_id=grant(p).id, key="v", actor="root@example.com", reason="mistake"),
        ["credit.granted", "credit.voided"],
    ),
    "refund": (
        lambda p: credits.refund(
            grant_id=grant(p, paid_amount=9, currency="EUR").id, key="r", actor="root", reason="sorry", reference="re_1"
        ),
        ["credit.granted", "credit.refunded"],
    ),
    "wallet frozen": (lambda p: wallets.set_state(wallet_of(p).id, Wallet.State.FROZEN), ["wallet.changed"]),
    "end of month": (lambda p: plans.end(p.tenant.id), ["subscription.changed"]),
    "end": (lambda p: plans.end(p.tenant.id, at_once=True), ["subscription.changed"]),
    "adjustment": (
        lambda p: credits.adjust(wallet_id=wallet_of(p).id, amount=-5, key="a", actor="root", reason="mistake"),
        ["credit.adjusted"],
    ),
    "plan": (change_terms, ["subscription.created", "subscription.changed"]),
    "terms": (
        lambda _: plans.publish_version(Plan.objects.get(slug="free"), concurrency=9),
        ["plan_version.created"],
    ),
    "prices": (
        lambda _: cards.publish("smollm2-135m-instruct", {0: {"input": 7, "cache_read": 1, "output": 9}}),
        ["prices.published"],
    ),
    "model": (switch_off, ["model.created", "deployment.created", "model.changed", "deployment.changed"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_leaves_its_event(acme, seen, verb):
    do, expected = VERBS[verb]
    do(acme)
    found = seen()
    actions = [event.action for event in found]
    if expected[0] is ...:
        expected, actions = expected[1:], actions[-len(expected) + 1 :]
    assert actions == expected
    for event in found:
        shared = event.target_type in {"publicmodel", "deployment", "planversion", "ratecardversion", "user"}
        personal = event.target_type in {"signinlink", "authenticator"}
        assert event.tenant_id == (None if shared or personal else acme.tenant.id)
        assert event.actor


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_rolled_back_leaves_none(acme, seen, verb):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        VERBS[verb][0](acme)
        raise ZeroDivisionError
    assert seen() == []


def test_before_and_after(acme, seen):
    members.change_role(tenant=acme.tenant, membership=membership_of(acme), role="billing")
    event = seen()[-1]
    assert (event.before, event.after) == ({"role": "member"}, {"role": "billing"})
    cards.publish("smollm2-135m-instruct", {0: {"input": 7, "cache_read": 1, "output": 9}})
    event = seen()[-1]
    assert event.before["output from 0"] == "40"
    assert event.after["output from 0"] == event.after["reasoning from 0"] == "0.000009"
    grant(acme, expires_at=timezone.now() + timedelta(days=1))
    assert seen()[-1].after["reason"] == "sorry"


def test_an_adjustment_of_several_grants_names_none(acme, seen):
    grant(acme)  # beside that of its plan
    left = wallet_of(acme).posted
    credits.adjust(wallet_id=wallet_of(acme).id, amount=-left, key="all", actor="root", reason="mistake")
    event = seen()[-1]
    assert (event.after["credits_micro"], event.after["grant"]) == (-left, None)


def test_no_secret_stands_in_the_trail(acme, seen):
    _, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="k")
    acme.owner.set_password("a long password")
    acme.owner.save()
    link = links.mint_link(user=acme.owner)
    Deployment.objects.create(
        name="far",
        model=add_model(name="m", kinds=["chat"], context_length=10, rate_card="x", source="").model,
        backend="remote",
        options={"api_key": "sk-theirs", "timeout": 5, "headers": {"Authorization": "Bearer theirs"}},
    )
    text = json.dumps([[event.before, event.after, event.target] for event in seen()])
    for hidden in (secret, acme.owner.password, token_of(link), "sk-theirs", "Bearer theirs", "a long password"):
        assert hidden not in text
    assert '"timeout": 5' in text
    assert trail().get(action="user.changed").after == {"password": "(not shown)"}


def test_a_request_says_who_and_from_where(acme, seen):
    body = json.dumps({"name": "Second"})
    answer = Client(REMOTE_ADDR="192.0.2.7").post(
        "/api/v1/projects/", body, content_type="application/json", headers=acme.bearer
    )
    event = seen()[-1]
    assert (event.action, event.api_key, event.user) == ("project.created", acme.key, None)
    assert event.actor == f"key {acme.key}"
    assert (event.address, str(event.request)) == ("192.0.2.7", answer.headers["x-request-id"])
    client = acme.client()
    seen()
    client.post("/keys/new/", {"name": "by hand", "project": str(acme.project.id), "access": "inference"})
    event = seen()[-1]
    assert (event.user, event.actor, event.api_key) == (acme.owner, acme.owner.email, None)
    Project.objects.create(tenant=acme.tenant, name="By a command")
    assert seen()[-1].actor not in ("", "anonymous", acme.owner.email)


def test_sign_ins_and_a_bounded_number_of_failures(acme, seen):
    cache.clear()
    client = Client(REMOTE_ADDR="192.0.2.7")
    client.post("/accounts/login/", {"login": acme.owner.email, "password": PASSWORD})
    event = next(event for event in seen() if event.action == "sign_in.succeeded")
    assert (event.user, event.tenant, event.address) == (acme.owner, acme.tenant, "192.0.2.7")
    for number in range(sign_ins.MOST_FAILURES + 5):
        guesser = Client(REMOTE_ADDR=f"192.0.2.{number}")
        guesser.post("/accounts/login/", {"login": acme.owner.email, "password": "my bank's password"})
        guesser.post("/accounts/login/", {"login": "my bank's password", "password": "x"})
    Client().post("/accounts/login/", {"login": "nobody@x.example", "password": "x"})
    failures = [event for event in seen() if event.action == "sign_in.failed"]
    assert len(failures) == sign_ins.MOST_FAILURES
    assert {(event.actor, event.user, event.target) for event in failures} == {("anonymous", None, acme.owner.email)}


def test_groups_of_an_operator(db):
    roles.ensure_roles()
    user = User.objects.create_user("ann@example.com", is_staff=True)
    user.groups.add(Group.objects.get(name="support"))
    event = trail().first()
    assert (event.action, event.after) == ("user.groups", {"groups": ["support"]})


@pytest.mark.parametrize("statement", ["UPDATE gateway_auditevent SET actor = 'me'", "DELETE FROM gateway_auditevent"])
def test_events_are_final(acme, statement):
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_names_are_erased_and_nothing_is_put_in_their_place(acme):
    event = trail().filter(target=acme.owner.email).first()
    rows = trail().filter(pk=event.pk)
    for wrong in ({"target": "somebody"}, {"after": {"role": "owner"}}, {"address": "10.0.0.1"}, {"action": "x"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.update(actor="erased", **wrong)
    rows.update(actor="erased", target="erased", before={}, after={})
    found = rows.get()
    assert (found.actor, found.target, found.after, found.action, found.at) == (
        "erased",
        "erased",
        {},
        event.action,
        event.at,
    )


# -- where it is read


def test_the_api_shows_a_tenant_its_own(acme, other):
    keys.create_key(tenant=other.tenant, project=other.project, name="theirs")
    client = Client(headers=acme.bearer)
    rows = client.get("/api/v1/audit/", {"action": "key.created"}).json()["data"]
    assert [row["target_id"] for row in rows] == [str(acme.key.id)]
    assert rows[0]["after"]["scopes"] == ["inference", "management"]
    today = timezone.now().date()
    assert client.get("/api/v1/audit/", {"day": today.isoformat()}).json()["data"]
    assert not client.get("/api/v1/audit/", {"day": "2001-01-01"}).json()["data"]
    assert client.get("/api/v1/audit/", {"actor": "nobody"}).json()["data"] == []
    assert client.get("/api/v1/audit/", {"day": "9999-12-31"}).status_code == 200
    assert client.get("/api/v1/audit/", {"action": "\0"}).status_code == 400


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("admin", True), ("member", False), ("billing", False)])
def test_owners_and_admins_read_the_page(acme, role, may):
    client = acme.client()
    if role != "owner":
        client.force_login(membership_of(acme, role=role).user, backend=BACKEND)
    page = client.get("/audit/")
    assert page.status_code == (200 if may else 404)
    assert client.get("/api/v1/audit/").status_code == (200 if may else 403)
    assert ("/audit/" in client.get("/usage/").content.decode()) is may
    if may:
        text = page.content.decode()
        assert "Made the key <strong>" in text
        filtered = client.get("/audit/", {"action": "tenant.created"}).content.decode()
        assert "Made the key <strong>" not in filtered


def test_pages_take_a_fixed_number_of_queries(acme, django_assert_num_queries):
    root = Client()
    root.force_login(User.objects.create_superuser("root@example.com"), backend=BACKEND)
    client = acme.client()
    for number in range(6):
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"k{number}", created_by=acme.owner)
    for browser in (client, root):
        browser.get("/accounts/")  # notes that the session is in use
    with django_assert_num_queries(9):  # two for the names of projects and people
        assert client.get("/audit/").status_code == 200
    with django_assert_num_queries(5):
        page = root.get(reverse("admin:gateway_auditevent_changelist"))
    assert "key.created" in page.content.decode()
    event = trail().filter(action="key.created").first()
    assert root.get(reverse("admin:gateway_auditevent_change", args=[event.pk])).status_code == 200
    assert root.get(reverse("admin:gateway_auditevent_add")).status_code == 403
    chosen = {"tenant__id__exact": str(acme.tenant.id), "action": "key.created", "user__id__exact": str(acme.owner.id)}
    assert root.get(reverse("admin:gateway_auditevent_changelist"), chosen).status_code == 200


def test_older_pages(acme, monkeypatch):
    monkeypatch.setattr("control.screens.audit.PAGE", 2)
    client, met = acme.client(), []
    path = "/audit/"
    while path:
        table = client.get(path).context["table"]
        met += [row.values[0] for row in table.rows]
        path = table.older and f"/audit/{table.older}"
    assert met == list(AuditEvent.objects.of(acme.tenant).order_by("-id").values_list("at", flat=True))
