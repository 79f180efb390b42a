"""A key that is revoked while it makes another one leaves none behind."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from gateway.models import APIKey, Project, Tenant
from gateway.services import keys
from tests.gateway.services.race import apart, is_waiting

pytestmark = [
    pytest.mark.money,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


def test_a_child_made_while_its_parent_is_revoked_is_revoked_too(monkeypatch):
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    project = Project.objects.create(tenant=tenant, name="Default")
    parent, _ = keys.create_key(tenant=tenant, project=project, name="parent", scopes=["management"])
    revoker = threading.Thread(target=lambda: apart(lambda: keys.revoke_key(tenant=tenant, key=parent)))
    real, failures = keys.secrets.token_urlsafe, []

    def slow(size):
        """Let the revocation come as far as it can: to its end, or to a lock that it waits for."""
        revoker.start()
        for _ in range(20_000):
            if not revoker.is_alive() or apart(is_waiting):
                return real(size)
        failures.append("the revocation neither ended nor waited")
        return real(size)

    monkeypatch.setattr(keys.secrets, "token_urlsafe", slow)
    keys.create_key(tenant=tenant, project=project, name="child", scopes=["management"], parent=parent)
    revoker.join(120)
    assert not failures
    assert APIKey.objects.of(tenant).filter(revoked_at=None).count() == 0
