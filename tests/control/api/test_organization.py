"""OpenAI's administration API, asked by its own SDK: what maps, what is refused, and whose keys open what."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import httpx2 as httpx
import openai
import pytest
from django.test import Client

from billing.models import UsageRollup
from gateway.runtime.principals import load_by_key
from routing.models import PublicModel
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Invitation, Project
from tenancy.services import admin_keys, members
from tests.gateway.post import sent_mail

pytestmark = pytest.mark.django_db
BASE = "/v1/organization"


class DjangoTransport(httpx.BaseTransport):
    """Sends the SDK's requests through Django's test client."""

    def handle_request(self, request):
        answer = Client().generic(
            request.method,
            request.url.raw_path.decode(),
            request.read(),
            content_type=request.headers.get("content-type", "application/json"),
            headers={"authorization": request.headers.get("authorization", "")},
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


def sdk(secret):
    """The administration part of an unmodified SDK."""
    http = httpx.Client(transport=DjangoTransport())
    client = openai.OpenAI(
        api_key="unused", admin_api_key=secret, base_url="http://testserver/v1", http_client=http, max_retries=0
    )
    return client.admin.organization


@pytest.fixture
def secret(acme):
    return admin_keys.create_admin_key(tenant=acme.tenant, name="first", created_by=acme.owner)[1]


@pytest.fixture
def admin(secret):
    return sdk(secret)


def ask(secret, method, path, body=None):
    data = "" if body is None else json.dumps(body)
    headers = {"authorization": f"Bearer {secret}"}
    return Client().generic(method, f"{BASE}/{path}", data, content_type="application/json", headers=headers)


@pytest.mark.parametrize("path", ["admin_api_keys", "projects", "invites", "users", "costs"])
def test_options_is_no_method_of_it(secret, path):
    """It was a 500 where a POST is served."""
    answer = ask(secret, "OPTIONS", path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


def test_each_kind_of_key_opens_its_own_door(acme, secret):
    assert ask(secret, "GET", "projects").status_code == 200
    assert load_by_key(secret).code == "invalid_api_key"
    for path, status in (("keys", 200), ("wallet", 401)):
        assert Client().get(f"/api/v1/{path}/", headers={"authorization": f"Bearer {secret}"}).status_code == status
    for other in (acme.secret, "sk-sluice-admin-nothing", ""):
        refused = ask(other, "GET", "projects")
        assert refused.status_code == 401
        assert ask(other, "GET", "certificates").status_code == 401


def test_admin_keys_are_made_listed_and_revoked(acme, admin):
    made = admin.admin_api_keys.create(name="second", expires_in_seconds=3600)
    assert made.value.startswith(admin_keys.ADMIN_PREFIX)
    assert [key.name for key in admin.admin_api_keys.list()] == ["first", "second"]
    assert [key.name for key in admin.admin_api_keys.list(order="desc", limit=1)] == ["second", "first"]
    assert admin.admin_api_keys.retrieve(made.id).redacted_value.endswith(made.value[-4:])
    second = sdk(made.value)
    assert second.admin_api_keys.delete(made.id).deleted
    with pytest.raises(openai.AuthenticationError):
        second.projects.list()
    actions = AuditEvent.objects.of(acme.tenant).filter(target_id=made.id).values_list("action", "actor")
    assert [action for action, _ in actions] == ["admin_key.revoked", "admin_key.created"]
    assert "first" in actions[1][1]
    assert made.value not in str(list(AuditEvent.objects.of(acme.tenant).values()))


def test_an_expired_admin_key_is_refused(acme, secret):
    AdminAPIKey.objects.of(acme.tenant).update(expires_at=datetime.now(UTC))
    assert ask(secret, "GET", "projects").status_code == 401


@pytest.mark.parametrize("change", ["remove", "demote"])
def test_who_is_no_owner_any_more_has_no_admin_keys(acme, secret, change):
    """They could make themselves owner again."""
    made = ask(secret, "POST", "admin_api_keys", {"name": "spare"}).json()["value"]
    _, other = admin_keys.create_admin_key(tenant=acme.tenant, name="nobody's")
    _, token = members.invite_member(tenant=acme.tenant, email="second@acme.example", role="owner")
    members.accept_invitation(token=token.rstrip("/").rpartition("/")[2], password="a long pass phrase")
    if change == "remove":
        members.remove_member(tenant=acme.tenant, membership=acme.membership)
    else:
        members.change_role(tenant=acme.tenant, membership=acme.membership, role="admin")
    assert [ask(one, "GET", "users").status_code for one in (secret, made, other)] == [401, 401, 200]
    assert AuditEvent.objects.of(acme.tenant).filter(action="admin_key.revoked").count() == 2


def test_projects(acme, admin):
    made = admin.projects.create(name="Research")
    assert admin.projects.update(made.id, name="Search").name == "Search"
    assert [project.name for project in admin.projects.list(limit=1)] == ["Default", "Search"]
    assert admin.projects.archive(made.id).status == "archived"
    assert [project.name for project in admin.projects.list()] == ["Default"]
    assert len(list(admin.projects.list(include_archived=True))) == 2
    with pytest.raises(openai.BadRequestError, match="keeps a project"):
        admin.projects.archive(str(acme.project.id))
    with pytest.raises(openai.BadRequestError, match="not supported"):
        admin.projects.create(name="x", geography="EU")


def test_keys_and_service_accounts_of_a_project(acme, admin):
    project = str(acme.project.id)
    made = admin.projects.service_accounts.create(project, name="robot")
    assert load_by_key(made.api_key.value).project == acme.project.id
    keys = {key.name: key for key in admin.projects.api_keys.list(project)}
    assert (keys["all"].owner.type, keys["robot"].owner.type) == ("user", "service_account")
    assert [account.name for account in admin.projects.service_accounts.list(project)] == ["robot"]
    changed = admin.projects.api_keys.update(made.id, project_id=project, scopes=["api.all.read"])
    assert changed.id == made.id
    assert APIKey.objects.of(acme.tenant).get(id=made.id).scopes == ["inference.read"]
    assert admin.projects.api_keys.delete(made.id, project_id=project).deleted
    assert load_by_key(made.api_key.value).code == "api_key_revoked"
    with pytest.raises(openai.NotFoundError):
        admin.projects.api_keys.retrieve(made.id, project_id=project)


def test_people(acme, admin):
    [owner] = admin.users.list()
    assert (owner.email, owner.role) == (acme.owner.email, "owner")
    assert list(admin.users.list(emails=["nobody@acme.example"])) == []
    with pytest.raises(openai.BadRequestError, match="needs an owner"):
        admin.users.update(owner.id, role="reader")
    with pytest.raises(openai.BadRequestError, match="needs an owner"):
        admin.users.delete(owner.id)
    invite = admin.invites.create(email="New@acme.example", role="reader")
    assert (invite.email, invite.status) == ("new@acme.example", "pending")
    assert [one.id for one in admin.invites.list()][-1] == invite.id
    assert admin.invites.delete(invite.id).deleted
    assert not Invitation.objects.of(acme.tenant).filter(id=invite.id).exists()
    accepted = Invitation.objects.of(acme.tenant).exclude(accepted_at=None).first()
    assert admin.invites.retrieve(str(accepted.id)).status == "accepted"
    with pytest.raises(openai.BadRequestError, match="taken up"):
        admin.invites.delete(str(accepted.id))


def test_an_invitation_goes_out_by_mail(acme, admin):
    admin.invites.create(email="friend@acme.example", role="owner")
    [mail] = sent_mail()
    assert mail.to == ["friend@acme.example"]


def use(acme, hour, model, **sums):
    UsageRollup.objects.create(
        hour=hour, tenant=acme.tenant.id, project=acme.project.id, api_key=acme.key.id, model=model, **sums
    )


@pytest.fixture
def noon(acme):
    """Noon of the day before yesterday, with usage then and an hour later."""
    for name, kind in (("writer", "chat"), ("vectors", "embedding")):
        PublicModel.objects.create(name=name, kinds=[kind], context_length=10, rate_card="x")
    noon = (datetime.now(UTC) - timedelta(days=2)).replace(hour=12, minute=0, second=0, microsecond=0)
    for hour in (noon, noon + timedelta(hours=1)):
        use(acme, hour, "writer", requests=2, input_tokens=10, cache_read_tokens=5, output_tokens=7, charge=1_500_000)
        use(acme, hour, "vectors", requests=1, input_tokens=3, charge=500_000)
    return noon


def test_usage_and_costs(acme, admin, noon):
    start = int(noon.replace(hour=0).timestamp())
    page = admin.usage.completions(start_time=start, group_by=["model", "api_key_id"])
    assert [len(bucket.results) for bucket in page.data] == [1, 0, 0]
    [used] = page.data[0].results
    assert (used.input_tokens, used.input_cached_tokens, used.output_tokens, used.num_model_requests) == (30, 10, 14, 4)
    assert (used.model, used.api_key_id, used.project_id) == ("writer", str(acme.key.id), None)
    hours = admin.usage.completions(start_time=int(noon.timestamp()), bucket_width="1h", limit=1)
    assert hours.data[0].results[0].num_model_requests == 2
    following = admin.usage.completions(
        start_time=int(noon.timestamp()), bucket_width="1h", limit=1, page=hours.next_page
    )
    assert following.data[0].start_time == int((noon + timedelta(hours=1)).timestamp())
    vectors = admin.usage.embeddings(start_time=start, project_ids=[str(acme.project.id)])
    assert vectors.data[0].results[0].input_tokens == 6
    costs = admin.usage.costs(start_time=start, group_by=["line_item"])
    assert {one.line_item: one.amount.value for one in costs.data[0].results} == {"writer": 3.0, "vectors": 1.0}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("usage/completions", "start_time"),
        ("usage/completions?start_time=x", "start_time"),
        ("usage/completions?start_time=0&bucket_width=1m", "bucket_width"),
        ("usage/completions?start_time=0&group_by[]=user_id", "group_by"),
        ("usage/completions?start_time=0&project_ids=x", "project_ids"),
        ("costs?start_time=0&limit=181", "limit"),
        ("costs?start_time=99999999999999999999999", "start_time"),
        ("costs?start_time=00000000000000000000999999999999", "start_time"),
        pytest.param(f"costs?start_time={'0' * 20}{'1' * 5000}", "start_time", id="more digits than int takes"),
        ("projects?limit=0", "limit"),
        ("projects?limit=000000000000000000019999", "limit"),
        ("projects?after=x", "after"),
        ("audit_logs?effective_at[gt]=x", "effective_at[gt]"),
        ("admin_api_keys?order=up", "order"),
        ("users?emails=%00", "emails"),
        ("audit_logs?resource_ids[]=%00", "resource_ids"),
    ],
)
def test_a_wrong_parameter_is_named(acme, secret, path, field):
    answer = ask(secret, "GET", path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "n" * 300, 7])
def test_a_text_that_no_column_takes_is_named(acme, secret, text):
    project = f"projects/{acme.project.id}"
    for path, field in (
        ("projects", "name"),
        (project, "name"),
        (f"{project}/service_accounts", "name"),
        ("admin_api_keys", "name"),
        ("invites", "email"),
        (f"users/{acme.owner.id}", "role"),
    ):
        answer = ask(secret, "POST", path, {"role": "reader", field: text} if field == "email" else {field: text})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), path


def test_a_name_that_is_half_of_a_character_is_refused(secret):
    answer = ask(secret, "POST", "projects", {"\ud800": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "?")


def test_audit_logs(acme, admin):
    project = admin.projects.create(name="Short")
    admin.projects.archive(project.id)
    types = [event.type for event in admin.audit_logs.list(limit=2)]
    assert types[:2] == ["project.archived", "project.created"]
    assert "api_key.created" in types
    [made] = admin.audit_logs.list(event_types=["project.created"], resource_ids=[project.id])
    assert made.project_created.id == project.id
    assert list(admin.audit_logs.list(effective_at={"gt": 2_000_000_000})) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "certificates"),
        ("POST", "spend_limit"),
        ("GET", "usage/images"),
        ("GET", "projects/01a2035c-e252-77a2-94fe-633a5e1ee467/rate_limits"),
        ("DELETE", "groups/x"),
        ("GET", ""),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(acme, secret, method, path):
    answer = ask(secret, method, path)
    assert answer.status_code == 501
    assert answer.json()["error"]["code"] == "not_supported"
    assert f"{BASE}/{path}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "projects/proj_abc",
        "projects/proj_abc/archive",
        "projects/proj_abc/api_keys",
        "projects/01a2035c-e252-77a2-94fe-633a5e1ee467/api_keys/key_abc",
        "projects/proj_abc/service_accounts/svc_acct_abc",
        "users/user-abc",
        "invites/invite-abc",
        "admin_api_keys/key_abc",
    ],
)
def test_an_id_that_is_none_of_ours_is_found_nowhere(acme, secret, method, path):
    answer = ask(secret, method, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert Client().get(f"{BASE}/{path}").status_code == 401


def test_one_tenant_sees_nothing_of_another(acme, other, secret):
    theirs = [
        ("GET", f"projects/{other.project.id}"),
        ("POST", f"projects/{other.project.id}/archive"),
        ("GET", f"projects/{other.project.id}/api_keys"),
        ("DELETE", f"projects/{acme.project.id}/api_keys/{other.key.id}"),
        ("GET", f"users/{other.owner.id}"),
        ("DELETE", f"users/{other.owner.id}"),
    ]
    key, _ = admin_keys.create_admin_key(tenant=other.tenant, name="theirs")
    theirs += [("GET", f"admin_api_keys/{key.id}"), ("DELETE", f"admin_api_keys/{key.id}")]
    for method, path in theirs:
        assert ask(secret, method, path).status_code == 404, path
    for path in ("projects", "users", "invites", "admin_api_keys", "audit_logs", "costs?start_time=0"):
        text = ask(secret, "GET", path).content.decode()
        assert not any(str(one) in text for one in (other.project.id, other.owner.email, key.id, other.key.id)), path
    assert Project.objects.of(other.tenant).get().is_active


def test_an_address_longer_than_its_column_is_none(acme, secret):
    email = f"{'n' * 250}@acme.example"
    assert ask(secret, "POST", "invites", {"email": email, "role": "reader"}).json()["error"]["param"] == "email"
    answer = acme.client().post("/api/v1/members/", {"email": email}, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "email")
