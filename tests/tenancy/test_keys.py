from datetime import timedelta

import pytest
from django.utils import timezone
from django.utils.crypto import salted_hmac

from base.errors import ServiceError
from tenancy.models import APIKey, Project, Tenant
from tenancy.services import admin_keys, keys

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return Tenant.objects.create(name="Acme", slug="acme")


@pytest.fixture
def project(tenant):
    return Project.objects.create(tenant=tenant, name="Default")


def test_create_key_keeps_only_digest_and_ends(tenant, project):
    key, secret = keys.create_key(tenant=tenant, project=project, name=" CI ", scopes=["inference"])
    assert secret.startswith("sk-sluice-")
    assert len(secret) == len("sk-sluice-") + 43
    stored = APIKey.objects.unscoped().values().get(id=key.id)
    assert stored["digest"] == keys.digest_of(secret)
    assert len(stored["digest"]) == 64
    assert stored["name"] == "CI"
    assert secret.startswith(stored["prefix"])
    assert secret.endswith(stored["last_four"])
    assert secret[14:-4] not in str(stored)


def test_two_keys_differ(tenant, project):
    secrets = {keys.create_key(tenant=tenant, project=project, name="k")[1] for _ in range(3)}
    assert len(secrets) == 3


def test_digest_depends_on_its_secret(settings):
    before = keys.digest_of("sk-sluice-x")
    settings.SLUICE_KEY_HASH_SECRET = "another"
    assert keys.digest_of("sk-sluice-x") != before
    settings.SECRET_KEY = "another too"
    djangos = salted_hmac("gateway.services.keys", "sk-sluice-x", secret="another", algorithm="sha256").hexdigest()
    assert keys.digest_of("sk-sluice-x") == djangos


def test_a_key_outlives_its_secret_and_moves_to_the_new_one(tenant, project, settings):
    key, secret = keys.create_key(tenant=tenant, project=project, name="k")
    old = settings.SLUICE_KEY_HASH_SECRET
    settings.SLUICE_KEY_HASH_SECRET = "another"
    assert not keys.find_key(secret).exists()
    settings.SLUICE_KEY_HASH_FALLBACKS = ["something else", old]
    assert keys.find_key(secret).get() == key
    settings.SLUICE_KEY_HASH_FALLBACKS = []
    assert keys.find_key(secret).get() == key
    assert not keys.find_key("sk-sluice-unknown").exists()


def test_an_admin_key_moves_to_the_new_secret_too(tenant, settings):
    key, secret = admin_keys.create_admin_key(tenant=tenant, name="k")
    settings.SLUICE_KEY_HASH_FALLBACKS = [settings.SLUICE_KEY_HASH_SECRET]
    settings.SLUICE_KEY_HASH_SECRET = "another"
    assert admin_keys.find_admin_key(secret) == key
    settings.SLUICE_KEY_HASH_FALLBACKS = []
    assert admin_keys.find_admin_key(secret) == key


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": " "}, "name"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"expires_at": timezone.now() - timedelta(seconds=1)}, "expires_at"),
    ],
)
def test_create_key_refuses(tenant, project, change, field):
    with pytest.raises(ServiceError) as caught:
        keys.create_key(**{"tenant": tenant, "project": project, "name": "k", **change})
    assert caught.value.field == field
    assert not APIKey.objects.of(tenant).exists()


def test_create_key_refuses_another_tenants_project(project):
    other = Tenant.objects.create(name="Other", slug="other")
    with pytest.raises(ServiceError) as caught:
        keys.create_key(tenant=other, project=project, name="k")
    assert caught.value.field == "project"


def test_revoke_key_once(tenant, project):
    key, _ = keys.create_key(tenant=tenant, project=project, name="k")
    assert keys.revoke_key(tenant=tenant, key=key)
    first = key.revoked_at
    assert first is not None
    assert not keys.revoke_key(tenant=tenant, key=key)
    assert key.revoked_at == first


@pytest.mark.parametrize("change", [{"name": "other"}, {"allowed_models": ["small"]}])
def test_a_revoked_key_is_not_changed_or_given_a_new_secret(tenant, project, change):
    key, _ = keys.create_key(tenant=tenant, project=project, name="k")
    keys.revoke_key(tenant=tenant, key=key)
    before = APIKey.objects.of(tenant).get()
    with pytest.raises(ServiceError, match="was revoked"):
        keys.change_key(tenant=tenant, key=key, change=change)
    with pytest.raises(ServiceError, match="was revoked"):
        keys.rotate_key(tenant=tenant, key=key)
    after = APIKey.objects.of(tenant).get()
    assert (after.name, after.digest, after.allowed_models) == (before.name, before.digest, before.allowed_models)


def test_revoke_key_of_another_tenant_refused(tenant, project):
    key, _ = keys.create_key(tenant=tenant, project=project, name="k")
    other = Tenant.objects.create(name="Other", slug="other")
    with pytest.raises(ServiceError):
        keys.revoke_key(tenant=other, key=key)
    assert APIKey.objects.of(tenant).get().revoked_at is None
