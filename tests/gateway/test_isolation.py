"""No page and no endpoint of the control plane shows or changes another tenant's rows.

The views come from the URL map: one that is neither named here nor exempt fails `test_every_view_has_a_case`.
The data plane's own cases are beside its tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.forms.models import model_to_dict
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from base.ids import day_of, uuid7
from billing.models import CreditGrant, SpendBudget, UsageRecord, UsageRollup, Wallet
from billing.services import credits as credit_services
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch
from gateway.conversations import Conversation
from tenancy.models import APIKey, Invitation, Membership, Project, Tenant
from tenancy.services import budgets, members

pytestmark = pytest.mark.django_db

# Views that belong to no tenant: the operator's admin, people's own accounts, secrets in links, public pages.
EXEMPT_PREFIXES = (
    "admin:",
    "account_",
    "mfa_",
    "organization-",
    "operate-",
    "api-operator-",
    "docs",
    "moved-",
)  # of tenants: tests/control/api/test_organization.py, tests/control/docs/test_readers.py
EXEMPT = {
    "link-open",
    "invitation-open",
    "address-open",
    "api-schema",
    "api-docs",
    "api-unknown",
    "console-request-former",
    "api-seal-keys",
}

# Views of a tenant: for each how it is called by `acme` with what is `other`'s. {key} and so on are other's ids, and
# {month} is of both.
CASES: dict[str, list[tuple[str, dict[str, str], dict[str, object]]]] = {
    "api-keys": [("get", {}, {}), ("post", {}, {"name": "x", "scopes": ["inference"], "project": "{project}"})],
    "api-key": [("get", {"pk": "{key}"}, {}), ("patch", {"pk": "{key}"}, {"name": "mine"})],
    "api-key-rotate": [("post", {"pk": "{key}"}, {})],
    "api-key-end-previous": [("post", {"pk": "{key}"}, {})],
    "api-key-revoke": [("post", {"pk": "{key}"}, {})],
    "api-tenant": [("get", {}, {}), ("patch", {}, {"response_storage": "forbidden"})],
    "api-tenant-export": [("get", {}, {})],
    "api-projects": [("get", {}, {})],
    "api-members": [("get", {}, {})],
    "api-member": [
        ("patch", {"pk": "{membership}"}, {"role": "billing"}),
        ("delete", {"pk": "{membership}"}, {}),
    ],
    "api-usage": [("get", {}, {}), ("get", {}, {"api_key": "{key}"}), ("get", {}, {"project": "{project}"})],
    "api-wallet": [("get", {}, {})],
    "api-wallet-transfers": [("get", {}, {})],
    "api-budgets": [
        ("get", {}, {}),
        ("post", {}, {"scope": "project", "window": "day", "limit": 6, "subject": "{project}"}),
    ],
    "api-budget": [
        ("get", {"pk": "{budget}"}, {}),
        ("patch", {"pk": "{budget}"}, {"limit": 6}),
        ("delete", {"pk": "{budget}"}, {}),
    ],
    "api-voucher-redeem": [("post", {}, {"code": "7K3M-XQ2T-9HVD-0B4N-ZR8C"})],
    "api-statements": [("get", {}, {})],
    "api-statement": [("get", {"month": "{month}", "form": "jsonl"}, {})],
    "api-audit": [("get", {}, {}), ("get", {}, {"action": "key.created"})],
    "console-audit": [("get", {}, {}), ("get", {}, {"action": "key.created"})],
    "api-route-explain": [("post", {}, {"model": "auto"})],
    "console-settings": [
        ("get", {}, {}),
        ("post", {}, {"response_storage": "forbidden", "hosted_tools": "leave_out"}),
    ],
    "console-alerts": [("get", {}, {}), ("post", {}, {"action": "delete", "id": "{key}"})],
    "console-export": [("get", {}, {})],
    "console-project-new": [("post", {}, {"name": ""})],
    "console-project": [("get", {"pk": "{project}"}, {}), ("post", {"pk": "{project}"}, {"name": "mine"})],
    "console-project-archive": [("post", {"pk": "{project}"}, {"typed": "Default"})],
    "console-rename": [("post", {}, {"name": ""})],
    "console-shared": [("get", {}, {})],
    "console-shared-end": [("post", {"pk": "{conversation}"}, {"act": "delete"})],
    "console-billing": [("get", {}, {})],
    "console-billing-export": [("get", {}, {})],
    "console-statement": [("get", {"month": "{month}"}, {})],
    "console-statement-file": [("get", {"month": "{month}", "form": "csv"}, {})],
    "console-redeem": [("post", {}, {"code": "7K3M-XQ2T-9HVD-0B4N-ZR8C"})],
    "console-budget-new": [
        ("get", {}, {}),
        ("post", {}, {"of": "project:{project}", "window": "day", "limit": "6", "name": "{project}"}),
    ],
    "console-budget": [
        ("get", {"pk": "{budget}"}, {}),
        ("post", {"pk": "{budget}"}, {"name": "mine", "limit": "6"}),
        ("post", {"pk": "{budget}"}, {"remove": "1"}),
    ],
    "console-people": [("get", {}, {}), ("get", {}, {"q": "owner"})],
    "console-invite": [("post", {}, {"email": "x", "role": "member"})],
    "console-leave": [("get", {}, {}), ("post", {}, {})],
    "console-invitation-resend": [("post", {"pk": "{invitation}"}, {})],
    "console-invitation-withdraw": [("post", {"pk": "{invitation}"}, {})],
    "console-member": [("get", {"pk": "{membership}"}, {}), ("post", {"pk": "{membership}"}, {"role": "billing"})],
    "console-member-remove": [
        ("get", {"pk": "{membership}"}, {}),
        ("post", {"pk": "{membership}"}, {"email": "owner@other.example"}),
    ],
    "console-home": [("get", {}, {})],
    "console-chat": [("get", {}, {})],
    "console-conversations": [("get", {}, {}), ("get", {}, {"q": "their"})],
    # Reading and saving one: tests/control/console/test_conversations.py
    "console-conversation": [("delete", {"pk": "{conversation}"}, {})],
    "console-conversation-shared": [("get", {"pk": "{conversation}"}, {})],
    "find": [("get", {}, {"q": "their"}), ("get", {}, {"q": "{request}"})],
    "console-account": [("get", {}, {})],
    "console-usage": [
        ("get", {}, {}),
        ("get", {}, {"key": "{key}"}),
        ("get", {}, {"project": "{project}", "group": "project"}),
        ("get", {}, {"member": "{owner}", "group": "member"}),
        ("get", {}, {"group": "endpoint"}),
    ],
    "console-usage-export": [("get", {}, {}), ("get", {}, {"key": "{key}"}), ("get", {}, {"project": "{project}"})],
    "console-usage-shown": [("get", {}, {}), ("get", {}, {"key": "{key}", "group": "key"})],
    "console-keys": [("get", {}, {}), ("get", {}, {"q": "all"}), ("get", {}, {"before": "0.{key}"})],
    "console-batches": [("get", {}, {}), ("get", {}, {"before": "{batch}"})],
    "console-batch-cancel": [("get", {"pk": "{batch}"}, {}), ("post", {"pk": "{batch}"}, {})],
    "console-batch-file": [("get", {"pk": "{batch}", "file_id": "{file}"}, {})],
    "console-models": [("get", {}, {})],
    "console-adapter-withdraw": [("get", {"pk": "{project}"}, {}), ("post", {"pk": "{project}"}, {})],
    "console-request": [("get", {"text": "{request}"}, {})],
    "console-requests": [
        ("get", {}, {}),
        ("get", {}, {"key": "{key}"}),
        ("get", {}, {"member": "{owner}"}),
        ("get", {}, {"model": "{model}"}),
    ],
    "console-requests-csv": [("get", {}, {}), ("get", {}, {"key": "{key}"})],
    "console-key-new": [
        ("get", {}, {}),
        ("post", {}, {"name": "x", "access": "inference", "project": "{project}"}),
    ],
    "console-admin-keys": [("get", {}, {})],
    "console-admin-key-made": [("get", {"pk": "{key}"}, {})],
    "console-admin-key-revoke": [("post", {"pk": "{key}"}, {})],
    "console-key-change": [
        ("get", {"pk": "{key}"}, {}),
        ("post", {"pk": "{key}"}, {"name": "x", "access": "inference"}),
    ],
    "console-key-rotate": [("post", {"pk": "{key}"}, {"overlap": "1"})],
    "console-key-made": [("get", {"pk": "{key}"}, {})],
    "console-key-revoke": [("get", {"pk": "{key}"}, {}), ("post", {"pk": "{key}"}, {"name": "all"})],
}


def named_views(resolver: URLResolver, namespace: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from named_views(pattern, inner)
        elif isinstance(pattern, URLPattern):
            yield f"{namespace}{pattern.name}"


def is_page(name: str) -> bool:
    """Pages know sessions and `?tenant=`, the API keys, sessions and a header."""
    return name == "find" or name.startswith("console-")


def is_exempt(name: str) -> bool:
    return name in EXEMPT or name.startswith(EXEMPT_PREFIXES)


def test_every_view_has_a_case():
    views = {name for name in named_views(get_resolver()) if not is_exempt(name)}
    assert views == set(CASES)


@pytest.fixture
def ids(acme, other):
    """What must not be seen or touched, by name."""
    wallet = Wallet.objects.get(tenant=other.tenant)
    credit_services.grant(wallet_id=wallet.id, amount=77_770_001, kind=CreditGrant.Kind.PAID, key="theirs")
    UsageRollup.objects.create(
        hour=other.tenant.created_at.replace(minute=0, second=0, microsecond=0),
        tenant=other.tenant.id,
        project=other.project.id,
        api_key=other.key.id,
        model="their-model",
        charge=5,
    )
    request = uuid7()
    UsageRecord.objects.create(
        id=request,
        request=request,
        day=day_of(request),
        tenant=other.tenant.id,
        project=other.project.id,
        api_key=other.key.id,
        wallet=wallet.id,
        model="their-model",
        deployment=uuid7(),
        card_version=uuid7(),
        charge=5,
        held=5,
        reserved_at=other.tenant.created_at,
    )
    file = StoredFile(
        tenant=other.tenant,
        project=other.project,
        purpose="batch_output",
        filename="their-file.jsonl",
        bytes=7,
        state=StoredFile.State.READY,
        expires_at=other.tenant.created_at + timedelta(days=9999),
    )
    file.save(force_insert=True)
    batch = Batch(
        tenant=other.tenant,
        project=other.project,
        api_key=other.key.id,
        endpoint="/v1/chat/completions",
        input_file=uuid7(),
        output_file=file.id,
        expires_at=other.tenant.created_at + timedelta(days=9999),
        status=Batch.Status.IN_PROGRESS,
    )
    batch.save(force_insert=True)
    told = {"turns": [], "leaf": None, "settings": {}}
    conversation = Conversation(
        id=uuid7(),
        tenant=other.tenant,
        user=other.owner,
        title="their conversation",
        content=json.dumps(told).encode(),
        words="their words",
        size=9,
        changed_at=other.tenant.created_at,
        shared_at=other.tenant.created_at,
    )
    conversation.save(force_insert=True)
    invitation, _ = members.invite_member(tenant=other.tenant, email="asked@other.example")
    budget = budgets.make(tenant=other.tenant, scope="tenant", window="day", amount=5)
    return {
        "budget": str(budget.id),
        "conversation": str(conversation.id),
        "invitation": str(invitation.id),
        "asked": invitation.email,
        "batch": str(batch.id),
        "file": str(file.id),
        "request": str(request),
        "tenant": str(other.tenant.id),
        "slug": other.tenant.slug + '"',
        "project": str(other.project.id),
        "key": str(other.key.id),
        "last_four": other.key.last_four + '"',
        "membership": str(other.membership.id),
        "owner": str(other.owner.id),
        "email": other.owner.email,
        "wallet": str(wallet.id),
        "amount": "77770001",
        "model": "their-model",
    }


def fill(values, ids):
    def one(value):
        return value.format(**ids, month=f"{timezone.now():%Y-%m}") if isinstance(value, str) else value

    return {name: one(value) for name, value in values.items()}


def rows_of(party):
    tables = (APIKey, Project, Membership, Invitation, Batch, StoredFile, Conversation)
    rows = [model_to_dict(row) for model in tables for row in model.objects.of(party.tenant).order_by("id")]
    rows += map(model_to_dict, SpendBudget.objects.filter(tenant=party.tenant.id).order_by("id"))
    return [*rows, model_to_dict(Tenant.objects.get(id=party.tenant.id))]


ASKED = [
    pytest.param((name, *case), as_session, id=f"{(name, *case)}-{'session' if as_session else 'key'}")
    for name, cases in CASES.items()
    for case in cases
    for as_session in ([True] if is_page(name) else [False, True])  # pages know no keys
]


@pytest.mark.parametrize(("case", "as_session"), ASKED)
def test_other_tenants_rows_stay_out_of_reach(acme, other, ids, case, as_session):
    name, method, kwargs, data = case
    client = acme.client() if as_session else Client(headers=acme.bearer)
    before = rows_of(other)
    path = reverse(name, kwargs=fill(kwargs, ids))
    sent = fill(data, ids)
    if method == "get":
        response = client.get(path, sent)
    elif is_page(name):
        response = getattr(client, method)(path, sent)
    else:
        response = getattr(client, method)(path, json.dumps(sent), content_type="application/json")
    # An archive is looked into by tests/control/belongings/test_export.py.
    content = "" if response.streaming else response.content.decode()
    echoed = set(kwargs.values()) | set(map(str, data.values()))
    for marker, value in ids.items():
        if "{" + marker + "}" not in echoed:
            assert value not in content, f"{name} shows {marker}"
    if set(kwargs) - {"month", "form"} or ("project" in data and method != "get"):
        assert response.status_code in (400, 403, 404)
        assert not APIKey.objects.of(acme.tenant).filter(project=other.project).exists()
    assert response.status_code < 500
    assert rows_of(other) == before


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_tenant_of_ones_own_must_be_named(acme, other, ids, name):
    """Naming another tenant in the header is refused, not ignored."""
    method, kwargs, _ = CASES[name][0]
    client = acme.client()
    path = reverse(name, kwargs=fill(kwargs, ids))
    if is_page(name):
        assert getattr(client, method)(path, query_params={"tenant": other.tenant.slug}).status_code == 404
        return
    headers = {"x-sluice-tenant": other.tenant.slug}
    response = getattr(client, method)(path, headers=headers, content_type="application/json")
    assert response.status_code == 403


def test_the_test_would_see_a_leak(acme, other, ids):
    """Called by `other` itself the same views do show what is looked for."""
    shown = Client(headers=other.bearer).get(reverse("api-keys")).content.decode()
    assert ids["key"] in shown
    assert ids["amount"] in Client(headers=other.bearer).get(reverse("api-wallet-transfers")).content.decode()
    client = other.client()
    assert ids["key"] in client.get(reverse("console-keys")).content.decode()
    assert ids["model"] in client.get(reverse("console-usage")).content.decode()
    assert ids["request"] in client.get(reverse("console-home")).content.decode()
    people = client.get(reverse("console-people")).content.decode()
    assert ids["asked"] in people
    assert ids["invitation"] in people
