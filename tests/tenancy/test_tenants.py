from datetime import timedelta

import pytest
from django.utils import timezone

from base import clock
from base.errors import ServiceError
from billing.models import CreditGrant, LedgerTransfer, Subscription, Wallet
from tenancy.models import Invitation, Membership, Project, Tenant
from tenancy.services import members, tenants
from tests.parties import PASSWORD

pytestmark = pytest.mark.django_db


def test_create_tenant_makes_everything(terms):
    made = tenants.create_tenant(name="Acme", slug="acme", owner_email="Ann@acme.example", plan="business")
    assert Project.objects.of(made.tenant).get().name == "Default"
    assert Subscription.objects.get(tenant=made.tenant).state == "active"
    wallet = Wallet.objects.get(tenant=made.tenant)
    granted = LedgerTransfer.objects.get(code=LedgerTransfer.Code.GRANT)
    assert wallet.posted == granted.amount == made.subscription.version.monthly_credits
    invitation = Invitation.objects.of(made.tenant).get()
    assert (invitation.email, invitation.role) == ("ann@acme.example", "owner")


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), timedelta(minutes=-5)])
def test_the_first_month_is_whole_whatever_this_machines_clock_says(terms, monkeypatch, ahead):
    """Months end by the database's clock, so they are counted from its moment."""
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + ahead)
    made = tenants.create_tenant(name="Acme", slug="acme", owner_email="ann@acme.example", plan="business")
    month = CreditGrant.objects.get(wallet=made.wallet)
    assert month.expires_at - clock.now() > timedelta(days=27)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": " "}, "name"),
        ({"slug": "Not a slug"}, "slug"),
        ({"slug": "taken"}, "slug"),
        ({"plan": "gold"}, "plan"),
        ({"owner_email": "nobody"}, "email"),
    ],
)
def test_create_tenant_refuses_and_leaves_nothing(terms, change, field):
    Tenant.objects.create(name="Taken", slug="taken")
    with pytest.raises(ServiceError) as caught:
        tenants.create_tenant(**{"name": "A", "slug": "a", "owner_email": "a@a.example", "plan": "free", **change})
    assert caught.value.field == field
    assert Tenant.objects.count() == 1
    assert not Wallet.objects.exists()


def test_a_second_invitation_replaces_the_first(acme):
    _, address = members.invite_member(tenant=acme.tenant, email="x@x.example")
    members.invite_member(tenant=acme.tenant, email="X@x.example", role="admin")
    assert Invitation.objects.of(acme.tenant).filter(accepted_at=None).get().role == "admin"
    assert members.find_invitation(token=address.rstrip("/").rpartition("/")[2]) is None


def test_a_member_is_not_invited_again(acme):
    with pytest.raises(ServiceError):
        members.invite_member(tenant=acme.tenant, email=acme.owner.email)


def test_the_last_owner_stays(acme):
    for refused in (
        lambda: members.change_role(tenant=acme.tenant, membership=acme.membership, role="member"),
        lambda: members.remove_member(tenant=acme.tenant, membership=acme.membership),
    ):
        with pytest.raises(ServiceError):
            refused()
    _, address = members.invite_member(tenant=acme.tenant, email="b@x.example", role="owner")
    members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD)
    members.remove_member(tenant=acme.tenant, membership=acme.membership)
    assert not Membership.objects.of(acme.tenant).get(id=acme.membership.id).is_active


def test_an_owner_who_cannot_sign_in_is_not_the_last(acme):
    second = joined(acme, "b@x.example", "owner")
    second.user.is_active = False
    second.user.save()
    with pytest.raises(ServiceError, match="needs an owner"):
        members.remove_member(tenant=acme.tenant, membership=acme.membership)


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (lambda tenant, member: members.remove_member(tenant=tenant, membership=member), []),
        (lambda tenant, member: members.change_role(tenant=tenant, membership=member, role="member"), []),
        (lambda tenant, member: members.change_role(tenant=tenant, membership=member, role="admin"), ["member"]),
        (
            lambda tenant, member: members.change_role(tenant=tenant, membership=member, role="owner"),
            ["member", "owner"],
        ),
    ],
)
def test_nobody_comes_back_by_an_invitation_that_they_may_not_send_any_more(acme, left, kept):
    second = joined(acme, "b@x.example", "owner")
    for role in ("owner", "member"):
        members.invite_member(tenant=acme.tenant, email=f"{role}@x.example", role=role, by=second.user)
    members.invite_member(tenant=acme.tenant, email="another@x.example", role="owner", by=acme.owner)
    left(acme.tenant, second)
    still = Invitation.objects.of(acme.tenant).filter(accepted_at=None)
    assert sorted(still.filter(invited_by=second.user).values_list("role", flat=True)) == kept
    assert still.filter(email="another@x.example").exists()


def test_who_is_a_member_already_keeps_their_role(acme):
    """Their address was changed to an invited one meanwhile."""
    _, address = members.invite_member(tenant=acme.tenant, email="boss@x.example")
    acme.owner.email = "boss@x.example"
    acme.owner.save()
    membership = members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], user=acme.owner)
    assert (membership.id, membership.role) == (acme.membership.id, "owner")
    assert members.find_invitation(token=address.rstrip("/").rpartition("/")[2]) is None


def joined(acme, email, role):
    """A new member by invitation."""
    _, address = members.invite_member(tenant=acme.tenant, email=email, role=role)
    return members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD)


def test_a_removed_member_can_come_back(acme):
    _, address = members.invite_member(tenant=acme.tenant, email="b@x.example")
    membership = members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD)
    members.remove_member(tenant=acme.tenant, membership=membership)
    _, address = members.invite_member(tenant=acme.tenant, email="b@x.example", role="billing")
    again = members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], user=membership.user)
    assert (again.id, again.role, again.is_active) == (membership.id, "billing", True)


def test_another_tenants_member_is_out_of_reach(acme, other):
    with pytest.raises(ServiceError):
        members.remove_member(tenant=acme.tenant, membership=other.membership)
    with pytest.raises(ServiceError):
        members.change_role(tenant=acme.tenant, membership=other.membership, role="member")
