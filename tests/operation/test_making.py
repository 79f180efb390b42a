"""`tenants create` and `keys create`: what they make, what alone is on standard output, and what their errors name."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from billing.models import Wallet
from billing.services.plans import ensure_default_plans
from tenancy.models import AdminAPIKey, APIKey, OutgoingMail, Tenant
from tenancy.services import members
from tenancy.services.admin_keys import ADMIN_PREFIX
from tenancy.services.keys import SECRET_PREFIX, find_key

pytestmark = pytest.mark.django_db

TENANT = ("Größe & Co", "--plan", "business", "--owner", "boss@x.example")


@pytest.fixture(autouse=True)
def plans():
    ensure_default_plans()


def said(*command):
    """What a command says on standard output, and beside it."""
    printed, told = StringIO(), StringIO()
    call_command(*command, stdout=printed, stderr=told)
    return printed.getvalue(), told.getvalue()


def refusal(*command):
    with pytest.raises(CommandError) as caught:
        call_command(*command)
    return str(caught.value)


def test_a_tenant_comes_with_plan_wallet_and_a_link_for_its_owner():
    link, told = said("tenants", "create", *TENANT)
    [tenant] = Tenant.objects.all()
    assert (tenant.slug, tenant.name) == ("groe-co", "Größe & Co")
    assert Wallet.objects.get(tenant=tenant).posted > 0
    assert members.find_invitation(token=link.strip().rstrip("/").rpartition("/")[2]).role == "owner"
    assert link.strip() not in told
    assert OutgoingMail.objects.get().to == "boss@x.example"
    assert said("tenants", "list")[0] == "groe-co  Größe & Co  business\n"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({2: "none"}, "--plan: No such plan. Offered: business, free, max."),
        ({4: "boss"}, "--owner: This is not an email address."),
        ({0: "x" * 121}, "NAME: A tenant needs a name of at most 120"),
        ({0: "客户"}, "--slug: Use small letters"),
    ],
)
def test_what_is_wrong_with_a_tenant_is_named_and_nothing_is_left(change, named):
    given = [change.get(place, one) for place, one in enumerate(TENANT)]
    assert named in refusal("tenants", "create", *given)
    assert not Tenant.objects.exists()


@pytest.fixture
def tenant():
    said("tenants", "create", "Acme", *TENANT[1:])
    return Tenant.objects.get()


def test_a_key_is_shown_once_and_works(tenant):
    secret, told = said("keys", "create", "ci", "--tenant", "acme", "--scope", "chat", "--scope", "files.read")
    key = find_key(secret.strip()).get()
    assert (key.tenant, key.project.name, key.name, key.scopes) == (tenant, "Default", "ci", ["chat", "files.read"])
    assert secret.strip() not in told
    secret, _ = said("keys", "create", "ci", "--tenant", "acme", "--days", "7", "--network", "10.0.0.0/8")
    key = find_key(secret.strip()).get()
    assert (key.expires_at - key.created_at).days in (6, 7)
    assert (key.networks, key.scopes) == (["10.0.0.0/8"], ["inference"])
    secret, _ = said("keys", "create", "tool", "--tenant", "acme", "--admin")
    assert secret.startswith(ADMIN_PREFIX)
    assert AdminAPIKey.objects.of(tenant).get().name == "tool"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--tenant", "other"], "--tenant: no active tenant is called 'other'"),
        (["--project", "none"], "--project: No such project. There are: Default."),
        (["--scope", "all"], "--scope: Unknown scope 'all'"),
        (["--model", "gpt"], "--model: There is no model 'gpt'"),
        (["--network", "here"], "--network: "),
        (["--days", "-1"], "--days: The expiry must be in the future."),
        (["--admin", "--model", "gpt"], "--model: an admin key has none"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(tenant, given, named):
    assert named in refusal("keys", "create", "ci", *(["--tenant", "acme"] if "--tenant" not in given else []), *given)
    assert "NAME: A key needs a name" in refusal("keys", "create", " ", "--tenant", "acme")
    assert not APIKey.objects.of(tenant).exists()
    assert SECRET_PREFIX not in named
