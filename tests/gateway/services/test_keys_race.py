"""A key that is revoked while it makes another one leaves none behind."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections

from gateway.models import APIKey, Project, Tenant
from gateway.services import keys

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_a_child_made_while_its_parent_is_revoked_is_revoked_too(monkeypatch):
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    project = Project.objects.create(tenant=tenant, name="Default")
    parent, _ = keys.create_key(tenant=tenant, project=project, name="parent", scopes=["management"])
    revoker = threading.Thread(target=lambda: _closing(lambda: keys.revoke_key(tenant=tenant, key=parent)))
    real, failures = keys.secrets.token_urlsafe, []

    def slow(size):
        """Let the revocation come as far as it can: to its end, or to a lock that it waits for."""
        revoker.start()
        for _ in range(20_000):
            if not revoker.is_alive() or _closing(_is_waiting):
                return real(size)
        failures.append("the revocation neither ended nor waited")
        return real(size)

    monkeypatch.setattr(keys.secrets, "token_urlsafe", slow)
    keys.create_key(tenant=tenant, project=project, name="child", scopes=["management"], parent=parent)
    revoker.join(20)
    assert not failures
    assert APIKey.objects.of(tenant).filter(revoked_at=None).count() == 0


def _is_waiting():
    with connections["default"].cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone() is not None


def _closing(do):
    """Return what `do` answers on a thread of its own, which leaves no connection behind."""
    found = []

    def run():
        try:
            found.append(do())
        finally:
            connections.close_all()

    if threading.current_thread() is not threading.main_thread():
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return found[0] if found else None
