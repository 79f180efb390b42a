import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import CreditGrant, UsageRollup, Wallet
from billing.services import credits as credit_services
from routing.models import Deployment, PublicModel, RouteRule, RouteTarget
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Membership, Project
from tenancy.services import keys, members
from tenancy.services.restrictions import Restrictions
from tests.gateway.post import sent_mail
from tests.parties import PASSWORD

pytestmark = pytest.mark.django_db


def call(headers, method, path, body=None, **options):
    return getattr(Client(), method)(
        f"/api/v1/{path}",
        data=None if body is None else json.dumps(body),
        content_type="application/json",
        headers=headers,
        **options,
    )


def send(party, method, path, body=None):
    return call(party.bearer, method, path, body)


def administer(party, method, path, body=None):
    """Call with an admin key."""
    return call(party.admin_bearer, method, path, body)


def get(party, path, data=None):
    return Client().get(f"/api/v1/{path}", data, headers=party.bearer)


def assert_error(response, status, code, param=None):
    assert response.status_code == status, response.content
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["request_id"] == response.headers["x-request-id"]
    assert error["message"]


def test_without_credentials_is_401():
    response = Client().get("/api/v1/keys/")
    assert_error(response, 401, "not_authenticated")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: {"authorization": "Bearer sk-sluice-nothing"},
        lambda p: keys.revoke_key(tenant=p.tenant, key=p.key) and p.bearer,
        lambda p: APIKey.objects.of(p.tenant).update(expires_at=timezone.now()) and p.bearer,
        lambda p: Project.objects.of(p.tenant).update(is_active=False) and p.bearer,
        lambda p: type(p.tenant).objects.filter(id=p.tenant.id).update(is_active=False) and p.bearer,
    ],
)
def test_a_key_that_is_no_good_is_401(acme, spoil):
    assert_error(Client().get("/api/v1/keys/", headers=spoil(acme)), 401, "invalid_api_key")


def test_a_key_without_the_scope_is_403(acme):
    _, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="i", scopes=["inference"])
    response = Client().get("/api/v1/keys/", headers={"authorization": f"Bearer {secret}"})
    assert_error(response, 403, "insufficient_scope")


@pytest.mark.parametrize("method", ["get", "post"])
def test_unknown_address_is_404_json(method):
    client = Client(enforce_csrf_checks=True)
    assert_error(getattr(client, method)("/api/v1/nothing/"), 404, "unknown_endpoint")


@pytest.mark.parametrize("accept", ["", "*/*", "application/json"])
def test_an_unknown_address_is_json_but_for_browsers(client, accept):
    answer = client.post("/nothing", "{}", content_type="application/json", headers={"accept": accept})
    assert_error(answer, 404, "unknown_endpoint")
    page = client.get("/nothing", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")


def test_broken_body_is_400(acme):
    client = Client()
    response = client.post("/api/v1/keys/", "{", content_type="application/json", headers=acme.admin_bearer)
    assert_error(response, 400, "parse_error")


# -- keys


def test_a_key_is_shown_once(acme):
    made = administer(acme, "post", "keys/", {"name": "ci", "scopes": ["inference"]})
    assert made.status_code == 201
    body = made.json()
    assert body["secret"].startswith("sk-sluice-")
    assert made.headers["cache-control"] == "no-store"
    stored = APIKey.objects.unscoped().get(digest=keys.digest_of(body["secret"]))
    assert str(stored.id) == body["id"]
    assert body["project"] == str(acme.project.id)
    again = get(acme, f"keys/{body['id']}/").json()
    assert "secret" not in again
    assert again["last_four"] == body["secret"][-4:]
    assert body["secret"] not in get(acme, "keys/").content.decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "k", "scopes": ["everything"]}, "scopes.0"),
        ({"name": "k", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "k", "project": "00000000-0000-7000-8000-000000000000"}, "project"),
    ],
)
def test_create_key_names_the_wrong_field(acme, body, param):
    response = administer(acme, "post", "keys/", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param.split(".")[0])


def test_a_revoked_key_is_refused_at_once(acme):
    revoked = administer(acme, "post", f"keys/{acme.key.id}/revoke/")
    assert revoked.status_code == 200
    assert revoked.json()["revoked_at"] is not None
    assert get(acme, "keys/").status_code == 401


def test_list_pages_by_cursor(acme):
    for number in range(3):
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"k{number}")
    first = get(acme, "keys/", {"limit": 3}).json()
    assert len(first["data"]) == 3
    second = Client().get(first["next"], headers=acme.bearer).json()
    assert len(second["data"]) == 1
    assert second["next"] is None
    names = [row["name"] for row in first["data"] + second["data"]]
    assert sorted(names) == ["all", "k0", "k1", "k2"]
    assert Client().get(second["previous"], headers=acme.bearer).json()["data"] == first["data"]


def test_made_up_cursors_are_refused(acme):
    """A cursor's position goes to the database as it is: one that we didn't make is none, nor another list's."""
    keys.create_key(tenant=acme.tenant, project=acme.project, name="another")
    of_keys = parse_qs(urlsplit(get(acme, "keys/", {"limit": 1}).json()["next"]).query)["cursor"]
    for name in ("keys", "members", "projects", "audit"):
        for cursor in ("cD0lMDA=", "cD1ub3RoaW5n", "", "\0", *(of_keys if name != "keys" else ())):
            assert_error(get(acme, f"{name}/", {"cursor": cursor}), 400, "invalid_value", "cursor")


def test_list_pages_take_a_fixed_number_of_queries(acme, django_assert_num_queries):
    for number in range(5):
        keys.create_key(tenant=acme.tenant, project=acme.project, name=f"k{number}")
        credit_services.grant(
            wallet_id=Wallet.objects.get(tenant=acme.tenant).id,
            amount=5,
            kind=CreditGrant.Kind.PROMOTIONAL,
            key=f"g{number}",
        )
    get(acme, "keys/")  # the first call of a minute also notes the key's use
    expected = {"keys/": 3, "projects/": 2, "members/": 2, "wallet/": 3, "usage/": 2}
    for path, count in expected.items():
        with django_assert_num_queries(count):
            assert get(acme, path).status_code == 200
    with django_assert_num_queries(5):
        assert get(acme, "wallet/transfers/").status_code == 200


def test_use_is_noted_to_the_minute(acme):
    get(acme, "keys/")
    noted = APIKey.objects.of(acme.tenant).get().last_used_at
    assert noted is not None
    get(acme, "keys/")
    assert APIKey.objects.of(acme.tenant).get().last_used_at == noted
    APIKey.objects.of(acme.tenant).update(last_used_at=noted - timedelta(minutes=2))
    get(acme, "keys/")
    assert APIKey.objects.of(acme.tenant).get().last_used_at >= noted


# -- who may make, change, rotate and revoke keys


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def test_a_key_is_for_inference_unless_more_is_asked_for(acme):
    made = administer(acme, "post", "keys/", {"name": "plain"}).json()
    assert made["scopes"] == ["inference"]
    assert_error(call(bearer(made["secret"]), "get", "keys/"), 403, "insufficient_scope")
    assert_error(call(bearer(made["secret"]), "post", "keys/", {"name": "x"}), 403, "insufficient_scope")
    assert_error(administer(acme, "post", "keys/", {"name": "none", "scopes": []}), 400, "invalid_value", "scopes")


WRITES = [
    ("post", "rotate/", {"overlap_hours": 0}),
    ("post", "end-previous/", {}),
    ("post", "revoke/", {}),
    ("patch", "", {"name": "mine"}),
]


def test_a_key_makes_changes_rotates_and_revokes_none(acme):
    keys.rotate_key(tenant=acme.tenant, key=acme.key)
    _, secret = keys.create_key(tenant=acme.tenant, project=acme.project, name="manages", scopes=["management"])

    def rows():
        found = APIKey.objects.of(acme.tenant).order_by("id").values()
        return [{name: value for name, value in row.items() if name != "last_used_at"} for row in found]

    before = rows()
    asked = [(method, f"keys/{row['id']}/{tail}", body) for row in before for method, tail, body in WRITES]
    for method, path, body in [("post", "keys/", {"name": "child", "scopes": ["management"]}), *asked]:
        refused = call(bearer(secret), method, path, body)
        assert_error(refused, 403, "role_not_allowed")
        assert "use an admin key, or sign in" in refused.json()["error"]["message"]
    assert rows() == before
    listed = call(bearer(secret), "get", "keys/").json()["data"]
    assert {row["id"] for row in listed} == {str(row["id"]) for row in before}


def test_an_admin_key_makes_changes_rotates_and_revokes_those_of_all_projects(acme, other):
    second = Project.objects.create(tenant=acme.tenant, name="Second")
    body = {"name": "ci", "scopes": ["management", "inference"], "project": str(second.id)}
    made = administer(acme, "post", "keys/", body).json()
    path = f"keys/{made['id']}/"
    assert (made["project"], made["scopes"]) == (str(second.id), ["inference", "management"])
    assert [row["id"] for row in administer(acme, "get", "keys/").json()["data"]] == [made["id"], str(acme.key.id)]
    assert administer(acme, "patch", path, {"name": "cd", "request_limit": 7}).json()["name"] == "cd"
    rotated = administer(acme, "post", f"{path}rotate/", {"overlap_hours": 1}).json()
    assert rotated["previous_last_four"] == made["secret"][-4:]
    assert administer(acme, "post", f"{path}end-previous/").status_code == 200
    shown = administer(acme, "get", path).json()
    assert (shown["request_limit"], shown["last_four"]) == (7, rotated["secret"][-4:])
    assert administer(acme, "post", f"{path}revoke/").json()["revoked_at"] is not None
    events = AuditEvent.objects.of(acme.tenant).filter(target_id=made["id"])
    assert {event.action for event in events} >= {"key.created", "key.changed", "key.revoked"}
    assert all(event.actor.startswith("admin key administers") for event in events)
    for method, tail, body in [("get", "", None), *WRITES]:
        assert_error(administer(acme, method, f"keys/{other.key.id}/{tail}", body), 404, "not_found")
    body = {"name": "theirs", "project": str(other.project.id)}
    assert_error(administer(acme, "post", "keys/", body), 400, "invalid_value", "project")


def test_an_admin_key_that_is_no_good_is_401_and_opens_keys_alone(acme):
    for path in ("wallet/", "projects/", "audit/"):
        assert_error(administer(acme, "get", path), 401, "invalid_api_key")
    assert administer(acme, "get", "keys/").status_code == 200
    AdminAPIKey.objects.of(acme.tenant).update(revoked_at=timezone.now())
    for refused in (administer(acme, "get", "keys/"), administer(acme, "post", "keys/", {"name": "x"})):
        assert_error(refused, 401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"


def test_a_key_of_one_project_sees_none_of_another(acme):
    second = Project.objects.create(tenant=acme.tenant, name="Second")
    theirs, _ = keys.create_key(tenant=acme.tenant, project=second, name="theirs", created_by=acme.owner)
    client = Client(headers=acme.bearer)
    listed = [row["id"] for row in client.get("/api/v1/keys/").json()["data"]]
    assert listed == [str(acme.key.id)]
    assert_error(client.get(f"/api/v1/keys/{theirs.id}/"), 404, "not_found")
    assert acme.client().get(f"/api/v1/keys/{theirs.id}/").status_code == 200


def test_a_tenant_has_at_most_so_many_keys_and_invitations(acme, settings):
    settings.SLUICE_MOST_KEYS = 2
    assert administer(acme, "post", "keys/", {"name": "second"}).status_code == 201
    refused = administer(acme, "post", "keys/", {"name": "third"})
    assert_error(refused, 400, "invalid_value")
    assert "2 active keys" in refused.json()["error"]["message"]
    APIKey.objects.of(acme.tenant).filter(name="second").update(expires_at=timezone.now())
    assert administer(acme, "post", "keys/", {"name": "third"}).status_code == 201
    settings.SLUICE_MOST_INVITATIONS = 1
    client = acme.client()
    assert post(client, "members/", {"email": "a@acme.example"}).status_code == 201
    assert_error(post(client, "members/", {"email": "b@acme.example"}), 400, "invalid_value")
    assert post(client, "members/", {"email": "a@acme.example"}).status_code == 201
    assert [letter.to for letter in sent_mail()] == [["a@acme.example"]] * 2


# -- sessions and roles


def role_client(party, role):
    _, address = members.invite_member(tenant=party.tenant, email=f"{role}@acme.example", role=role)
    membership = members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD)
    client = Client()
    client.force_login(membership.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def post(client, path, body):
    return client.post(f"/api/v1/{path}", json.dumps(body), content_type="application/json")


def test_half_a_character_is_quoted_as_a_question_mark(acme):
    answer = post(acme.client(), "keys/", {"name": "x", "scopes": ["\ud800"]})
    assert_error(answer, 400, "invalid_value", param="scopes.0")
    assert '"?"' in answer.json()["error"]["message"]


def test_session_needs_csrf(acme):
    client = Client(enforce_csrf_checks=True)
    client.force_login(acme.owner, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/api/v1/keys/").status_code == 200
    assert_error(post(client, "projects/", {"name": "X"}), 403, "permission_denied")


def test_session_without_membership_is_403(acme):
    Membership.objects.of(acme.tenant).update(is_active=False)
    assert_error(acme.client().get("/api/v1/keys/"), 403, "not_a_member")


def test_header_picks_the_tenant(acme, other):
    _, address = members.invite_member(tenant=other.tenant, email=acme.owner.email)
    members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], user=acme.owner)
    listed = acme.client().get("/api/v1/keys/", headers={"x-sluice-tenant": "other"}).json()
    assert [row["id"] for row in listed["data"]] == [str(other.key.id)]
    assert acme.client().get("/api/v1/keys/", headers={"x-sluice-tenant": "none"}).status_code == 403


def test_member_makes_inference_keys_only_and_revokes_only_own(acme):
    client = role_client(acme, "member")
    body = {"name": "k", "scopes": ["management"]}
    assert_error(post(client, "keys/", body), 403, "role_not_allowed", "scopes")
    made = post(client, "keys/", {"name": "k", "scopes": ["inference"]})
    assert made.status_code == 201
    assert_error(post(client, f"keys/{acme.key.id}/revoke/", {}), 403, "role_not_allowed")
    assert post(client, f"keys/{made.json()['id']}/revoke/", {}).status_code == 200
    assert client.get("/api/v1/wallet/").status_code == 403
    assert post(client, "projects/", {"name": "X"}).status_code == 403


def test_billing_reads_the_wallet_and_makes_no_key(acme):
    client = role_client(acme, "billing")
    assert client.get("/api/v1/wallet/").status_code == 200
    assert post(client, "keys/", {"name": "k", "scopes": ["inference"]}).status_code == 403


def test_admin_cannot_touch_owners(acme):
    client = role_client(acme, "admin")
    body = {"email": "x@acme.example", "role": "owner"}
    assert_error(post(client, "members/", body), 403, "role_not_allowed", "role")
    assert client.delete(f"/api/v1/members/{acme.membership.id}/").status_code == 403


def test_owner_invites_changes_and_removes(acme):
    client = acme.client()
    invited = post(client, "members/", {"email": "New@acme.example", "role": "member"})
    assert invited.status_code == 201
    address = re.search(r"http\S+/invitations/\S+/", sent_mail()[0].body).group()
    assert address not in invited.content.decode()  # it proves the invited person's address, so it goes nowhere else
    membership = members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD)
    path = f"/api/v1/members/{membership.id}/"
    changed = client.patch(path, json.dumps({"role": "billing"}), content_type="application/json")
    assert (changed.status_code, changed.json()["role"]) == (200, "billing")
    removed = client.delete(path)
    assert (removed.status_code, removed.json()) == (200, [])
    assert len(client.get("/api/v1/members/").json()["data"]) == 1
    last = client.patch(
        f"/api/v1/members/{acme.membership.id}/", json.dumps({"role": "admin"}), content_type="application/json"
    )
    assert_error(last, 400, "invalid_value", "role")


def test_a_management_key_makes_projects_but_no_members(acme):
    assert send(acme, "post", "projects/", {"name": "Second"}).status_code == 201
    assert_error(send(acme, "post", "projects/", {"name": "Second"}), 400, "invalid_value", "name")
    assert_error(send(acme, "post", "members/", {"email": "a@b.example"}), 403, "role_not_allowed")


# -- wallet, usage, routing


def test_wallet_shows_its_sums_and_ledger(acme):
    wallet = Wallet.objects.get(tenant=acme.tenant)
    for number in range(3):
        credit_services.grant(
            wallet_id=wallet.id, amount=1_500_000, kind=CreditGrant.Kind.PAID, key=f"g{number}", reason="test"
        )
    wallet.refresh_from_db()
    body = get(acme, "wallet/").json()
    assert body["posted"]["credits_micro"] == wallet.posted
    assert body["available"]["credits_micro"] == wallet.posted - wallet.held + wallet.overdraft_limit
    assert body["restricted"] == []
    credit_services.grant(
        wallet_id=wallet.id, amount=2_000_000, kind=CreditGrant.Kind.PLAN, key="m", models=["small", "large"]
    )
    less, [restricted] = get(acme, "wallet/").json(), get(acme, "wallet/").json()["restricted"]
    assert less["available"] == body["available"]
    assert restricted["models"] == ["large", "small"]
    assert restricted["rest"]["credits"] == "2"
    assert restricted["available"]["credits_micro"] == body["available"]["credits_micro"] + 2_000_000
    first = get(acme, "wallet/transfers/", {"limit": 2}).json()
    amounts = [{"credits": "2", "credits_micro": 2_000_000}, {"credits": "1.5", "credits_micro": 1_500_000}]
    assert [row["amount"] for row in first["data"]] == amounts
    assert first["data"][1]["balance"]["credits_micro"] == wallet.posted
    assert first["data"][0]["code"] == "grant"
    rest = get(acme, "wallet/transfers/", {"cursor": first["next"]}).json()
    assert rest["next"] is None
    assert rest["data"][0]["balance"]["credits_micro"] == wallet.posted - 1_500_000
    assert_error(get(acme, "wallet/transfers/", {"cursor": "x"}), 400, "invalid_value", "cursor")


def test_usage_sums_by_day_and_splits(acme, other):
    now = datetime.now(tz=UTC).replace(minute=0, second=0, microsecond=0)
    common = {"hour": now, "project": acme.project.id, "requests": 1, "output_tokens": 5, "charge": 7}
    UsageRollup.objects.create(tenant=acme.tenant.id, api_key=acme.key.id, model="a", **common)
    UsageRollup.objects.create(tenant=acme.tenant.id, api_key=None, model="b", **common)
    UsageRollup.objects.create(tenant=other.tenant.id, api_key=None, model="c", **common)
    whole = get(acme, "usage/").json()
    assert [(row["requests"], row["charge"]["credits_micro"]) for row in whole["data"]] == [(2, 14)]
    split = get(acme, "usage/", {"by": ["model", "api_key"]}).json()
    assert {(row["model"], row["api_key"]) for row in split["data"]} == {("a", str(acme.key.id)), ("b", None)}
    assert get(acme, "usage/", {"last": (now - timedelta(days=2)).date().isoformat()}).json()["data"] == []
    assert_error(get(acme, "usage/", {"first": "2026-02-02", "last": "2026-02-01"}), 400, "invalid_value", "first")
    assert_error(get(acme, "usage/", {"first": "2020-02-02"}), 400, "invalid_value", "first")
    assert_error(get(acme, "usage/", {"last": "0001-01-01"}), 400, "invalid_value", "last")
    assert get(acme, "usage/", {"last": "9999-12-31"}).status_code == 200
    assert_error(get(acme, "usage/", {"first": "0001-01-01", "last": "9999-12-31"}), 400, "invalid_value", "first")


def test_route_explain_says_where_and_why(acme):
    name = "smollm2-135m-instruct"
    model = PublicModel.objects.create(name=name, kinds=["chat"], context_length=100, rate_card="x")
    Deployment.objects.create(name="small-1", model=model, backend="fake")
    rule = RouteRule.objects.create(name="everything")
    RouteTarget.objects.create(rule=rule, model=model)
    decided = send(acme, "post", "routes/explain/", {"model": "auto", "task": "chat"})
    assert decided.status_code == 200, decided.content
    body = decided.json()
    assert (body["model"], body["deployment"], body["rule"]) == (name, "small-1", "everything")
    assert body["reason"]
    assert_error(send(acme, "post", "routes/explain/", {"model": "none"}), 404, "model_not_found", "model")
    other = PublicModel.objects.create(name="sluice-desk", kinds=["chat"], context_length=100, rate_card="x")
    Deployment.objects.create(name="desk-1", model=other, backend="fake")
    RouteTarget.objects.create(rule=rule, model=other)

    def led(**more):
        answer = send(acme, "post", "routes/explain/", {"task": None, **more})
        return answer.json()["model"] if answer.status_code == 200 else answer.json()["error"]["code"]

    assert {led(models=["sluice-desk"]), led(conversation="sluice-desk"), led(model="sluice-desk")} == {"sluice-desk"}
    assert led(conversation=name) == led(models=[name, "none"]) == name
    assert led(models=["none"]) == led(models=[name], model="sluice-desk") == "model_not_allowed"
    assert led(conversation=name, models=["sluice-desk"]) == "sluice-desk"


def test_a_key_of_a_deactivated_maker_explains_what_it_could_send(acme):
    models = ("smollm2-135m-instruct", "sluice-desk")
    for name in models:
        model = PublicModel.objects.create(name=name, kinds=["chat"], context_length=100, rate_card="x")
        Deployment.objects.create(name=name, model=model, backend="fake")
    _, secret = keys.create_key(
        tenant=acme.tenant,
        project=acme.project,
        name="i",
        scopes=["inference", "management"],
        restrictions=Restrictions(allowed_models=models[1:]),
        created_by=acme.owner,
    )
    explained = {}
    for acme.owner.is_active in (True, False):
        acme.owner.save()
        answer = call({"authorization": f"Bearer {secret}"}, "post", "routes/explain/", {"model": models[0]})
        explained[acme.owner.is_active] = answer.status_code
    assert explained == {True: 200, False: 403}
    assert_error(answer, 403, "model_not_allowed", "model")


def test_an_inference_key_explains_what_it_could_send(acme, other):
    models = (
        ("smollm2-135m-instruct", "chat", None),
        ("own", "chat", other.tenant),
        ("sluice-desk", "embedding", None),
    )
    for name, kind, tenant in models:
        model = PublicModel.objects.create(name=name, kinds=[kind], context_length=100, rate_card="x", tenant=tenant)
        Deployment.objects.create(name=f"{name}-1", model=model, backend="fake")

    def explained(scopes, own=(), **wanted):
        restricted = Restrictions(allowed_models=tuple(own))
        _, secret = keys.create_key(
            tenant=acme.tenant, project=acme.project, name="i", scopes=scopes, restrictions=restricted
        )
        answer = call({"authorization": f"Bearer {secret}"}, "post", "routes/explain/", wanted)
        return answer.json()["model"] if answer.status_code == 200 else answer.json()["error"]["code"]

    assert explained(["inference"], model="smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert explained(["chat", "usage.read"], model="smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert explained(["inference"], model="own") == "model_not_found"
    # Neither where a request went, which it can't ask for, nor one that it can't send.
    assert explained(["chat"], model="smollm2-135m-instruct") == "insufficient_scope"
    assert explained(["inference.read"], model="smollm2-135m-instruct") == "insufficient_scope"
    assert explained(["embeddings", "usage.read"], model="smollm2-135m-instruct") == "insufficient_scope"
    assert explained(["embeddings", "usage.read"], model="sluice-desk", kind="embedding") == "sluice-desk"
    # Its own models bind it.
    assert explained(["inference"], ["sluice-desk"], model="smollm2-135m-instruct") == "model_not_allowed"
    assert (
        explained(["inference"], ["sluice-desk"], model="smollm2-135m-instruct", models=["smollm2-135m-instruct"])
        == "invalid_value"
    )
    assert (
        explained(
            ["inference"],
            ["smollm2-135m-instruct", "sluice-desk"],
            model="smollm2-135m-instruct",
            models=["sluice-desk"],
        )
        == "model_not_allowed"
    )
