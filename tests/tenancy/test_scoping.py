import pytest
from django_scopes import ScopeError, scope, scopes_disabled

from tenancy.models import APIKey, Invitation, Membership, Project

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("model", [APIKey, Invitation, Membership, Project])
def test_a_query_outside_a_scope_raises(model, acme):
    for name in ("all", "filter", "count", "first", "update"):
        with pytest.raises(ScopeError):
            getattr(model.objects, name)()


def test_a_scope_shows_its_tenant_alone(acme, other):
    with scope(tenant=acme.tenant):
        assert APIKey.objects.get() == acme.key
        assert Project.objects.of(other.tenant).get() == other.project
        assert APIKey.objects.count() == 1
    with scopes_disabled():
        assert APIKey.objects.count() == 2
    assert APIKey.objects.unscoped().count() == 2


def test_related_managers_follow_the_scope(acme, other):
    with scope(tenant=acme.tenant):
        assert not other.tenant.api_keys.exists()
    with pytest.raises(ScopeError):
        acme.tenant.api_keys.exists()
    assert acme.tenant.api_keys.of(acme.tenant).get() == acme.key
