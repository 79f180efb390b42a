"""Two who take up invitations to one address at once: one becomes its user, the other is told to sign in."""

from __future__ import annotations

import threading

import pytest
from django.db import IntegrityError

from base.errors import ServiceError
from tenancy.models import Invitation, Membership, Tenant, User
from tenancy.services import members
from tests.tenancy.race import apart, is_waiting

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.parametrize("same", [True, False], ids=["one link", "two tenants"])
def test_two_acceptances_at_once_make_one_user(monkeypatch, same):
    tenants = [Tenant.objects.create(name=name, slug=name) for name in ("acme", "other")]
    links = [members.invite_member(tenant=tenant, email="new@x.example")[1] for tenant in tenants]
    first, second = (link.rstrip("/").rpartition("/")[2] for link in ([links[0]] * 2 if same else links))
    refused: list[Exception] = []

    def accept_second():
        try:
            members.accept_invitation(token=second, password="the second")
        except (ServiceError, IntegrityError) as error:
            refused.append(error)

    other = threading.Thread(target=lambda: apart(accept_second))
    real = members.take_up

    def slow(**given):
        """Let the other come as far as it can: to its end, or to a lock that it waits for."""
        monkeypatch.setattr(members, "take_up", real)
        other.start()
        while other.is_alive() and not apart(is_waiting):  # bounded by the test's timeout
            pass
        return real(**given)

    monkeypatch.setattr(members, "take_up", slow)
    members.accept_invitation(token=first, password="the first")
    other.join(120)
    assert [type(error) for error in refused] == [ServiceError], refused
    assert str(refused[0].message) == "Sign in as new@x.example first."
    assert User.objects.get(email="new@x.example").check_password("the first")
    assert Membership.objects.unscoped().get().tenant == tenants[0]
    open_ones = Invitation.objects.unscoped().filter(accepted_at=None).values_list("tenant__slug", flat=True)
    assert list(open_ones) == ["other"]
