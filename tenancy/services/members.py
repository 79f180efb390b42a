"""The members of a tenant: invited, joined, given another role, removed. A tenant always keeps an active owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.core.validators import MaxLengthValidator, validate_email
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.forms import ValidationError
from django.urls import reverse
from django.utils import timezone

from base.errors import ServiceError
from tenancy.audit.trail import record
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership, Tenant, User
from tenancy.services.access import CAPABILITIES
from tenancy.services.admin_keys import revoke_admin_keys_of
from tenancy.services.keys import end_management_of, revoke_keys_of
from tenancy.services.mail import Subject, queue_mail
from tenancy.services.tokens import new_token, token_digest, token_digests

LIFETIME = timedelta(days=14)
LONGEST_ADDRESS = 254  # characters of an address that can be sent to
Role = Membership.Role


def invite_member(
    *, tenant: Tenant, email: str, role: str = Role.MEMBER, by: User | None = None
) -> tuple[Invitation, str]:
    """Return a new invitation and the address that takes it up; an open one to the same address is replaced.

    `by` is the member who sends it, None an operator.
    """
    email = email.strip().lower()
    try:
        validate_email(email)
        MaxLengthValidator(LONGEST_ADDRESS)(email)
    except ValidationError:
        raise ServiceError("email", "This is not an email address.") from None
    if role not in Role.values:
        raise ServiceError("role", f"Unknown role: choose from {', '.join(Role.values)}.")
    if Membership.objects.of(tenant).filter(user__email=email, is_active=True).exists():
        raise ServiceError("email", "This person is a member already.")
    token = new_token()
    with transaction.atomic():
        Invitation.objects.of(tenant).filter(email=email, accepted_at=None).delete()
        _keep_below_the_most(tenant)
        invitation = Invitation(
            tenant=tenant,
            email=email,
            role=role,
            digest=token_digest(token),
            invited_by=by,
            created_at=timezone.now(),
            expires_at=timezone.now() + LIFETIME,
        )
        invitation.save(force_insert=True)
    return invitation, settings.SLUICE_BASE_URL.rstrip("/") + reverse("invitation-open", args=[token])


def _keep_below_the_most(tenant: Tenant) -> None:
    """Raise ServiceError if the tenant has SLUICE_MOST_INVITATIONS open; locks its row, so concurrent calls can't
    exceed that.
    """
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    most = settings.SLUICE_MOST_INVITATIONS
    if Invitation.objects.of(tenant).filter(accepted_at=None, expires_at__gt=timezone.now()).count() >= most:
        message = f"This tenant has {most} open invitations, the most it may have: wait until some are taken up."
        raise ServiceError("", message)


@transaction.atomic
def invite_by_mail(
    *, tenant: Tenant, email: str, role: str = Role.MEMBER, by: User | None = None
) -> tuple[Invitation, str]:
    """Return what `invite_member` does, with the address on its way by mail."""
    invitation, address = invite_member(tenant=tenant, email=email, role=role, by=by)
    send_invitation(invitation=invitation, address=address)
    return invitation, address


def send_invitation(*, invitation: Invitation, address: str) -> None:
    """Queue the mail with the address."""
    text = f"You were invited to {invitation.tenant.name} as {invitation.role}. Open within 14 days:\n\n{address}\n"
    queue_mail(to=invitation.email, subject=Subject.JOIN.format(invitation.tenant.name), text=text)


@transaction.atomic
def withdraw_invitation(*, tenant: Tenant, invitation: Invitation) -> None:
    """Delete an invitation that is still open: its link works no more."""
    mine = Invitation.objects.of(tenant).select_for_update().filter(id=invitation.id, accepted_at=None).first()
    if mine is None:
        raise ServiceError("invite", "This invitation was taken up.")
    mine.delete()


def find_invitation(*, token: str) -> Invitation | None:
    """Return the invitation of `token` while it can still be taken up."""
    open_ones = Invitation.objects.unscoped().select_related("tenant").filter(digest__in=token_digests(token))
    return open_ones.filter(accepted_at=None, expires_at__gt=timezone.now(), tenant__is_active=True).first()


def has_user(*, invitation: Invitation) -> bool:
    """Return whether the invited person is a user already, who has to sign in to take the invitation up."""
    return User.objects.filter(email=invitation.email).exists()


@transaction.atomic
def accept_invitation(*, token: str, user: User | None = None, password: str = "") -> Membership:
    """Take the invitation up for `user`, or for a new user with its address and `password`, made here; once only.

    Holding the link, which only its mail shows, proves the address: it becomes the user's only one. It doesn't sign in
    a user who exists already: whoever has the link would get all that this user may do. Raises
    ServiceError if the link is used or too old, if `user` has another address, if a user exists and isn't `user`, or if
    a new user chooses no password.
    """
    invitation = find_invitation(token=token)
    if invitation is None:
        raise ServiceError("token", "This invitation was used already or is too old. Ask for a new one.")
    if user is not None and user.email != invitation.email:
        raise ServiceError("user", f"This invitation is for {invitation.email}: sign out first.")
    if user is None and has_user(invitation=invitation):
        raise ServiceError("user", f"Sign in as {invitation.email} first.")
    if user is None and not password:
        raise ServiceError("password", "Choose a password.")
    if user is None:
        user = _new_user(invitation.email, password)
    else:
        User.objects.confirm_address(user)
    return take_up(invitation=invitation, user=user)


def _new_user(email: str, password: str) -> User:
    try:
        with transaction.atomic():
            return User.objects.create_user(email, password)
    except IntegrityError:  # whoever else holds the link, or another tenant's invitation, was faster
        raise ServiceError("user", f"Sign in as {email} first.") from None


@transaction.atomic
def take_up(*, invitation: Invitation, user: User) -> Membership:
    """Make `user` a member as the invitation says, and use it up; of two calls at once only one succeeds.

    Who is a member already, since their address changed meanwhile, keeps their role: it may be the last owner's.
    """
    tenant = invitation.tenant
    open_one = Invitation.objects.of(tenant).filter(id=invitation.id, accepted_at=None)
    if not open_one.update(accepted_at=timezone.now()):
        raise ServiceError("token", "This invitation was used already.")
    record("invitation.accepted", invitation, tenant=tenant.id, after={"role": invitation.role}, user=user)
    role = {"role": invitation.role, "is_active": True}
    mine = Membership.objects.of(tenant)
    present = mine.select_for_update().filter(user=user, is_active=True).first()
    if present is not None:
        return present
    membership, _ = mine.update_or_create(user=user, defaults=role, create_defaults={**role, "tenant": tenant})
    return membership


@dataclass(frozen=True, slots=True)
class EndedKey:
    """A key that ended with its maker's role: revoked, or else without the scope "management" from now on."""

    id: UUID
    name: str
    is_admin_key: bool
    revoked: bool

    @classmethod
    def of(cls, key: APIKey | AdminAPIKey, *, revoked: bool = True) -> EndedKey:
        """Return the end of a key: revoked, or without the scope that manages."""
        return cls(key.id, key.name, isinstance(key, AdminAPIKey), revoked)

    def __str__(self) -> str:
        return f"“{self.name}” is revoked" if self.revoked else f"“{self.name}” lost the scope “management”"


@transaction.atomic
def change_role(*, tenant: Tenant, membership: Membership, role: str) -> list[EndedKey]:
    """Give a member another role, and return their keys that end with the one before; the last owner keeps theirs.

    Admin keys end with an owner, the scope "management" with an owner or admin, open invitations with who may send
    them.
    """
    if role not in Role.values:
        raise ServiceError("role", f"Unknown role: choose from {', '.join(Role.values)}.")
    current = _locked(tenant, membership)
    ended: list[EndedKey] = []
    if role != Role.OWNER:
        _refuse_last_owner(tenant, current)
        ended = [EndedKey.of(key) for key in revoke_admin_keys_of(tenant=tenant, user=current.user_id)]
        sent = _open_invitations_of(current)
        (sent.filter(role=Role.OWNER) if role == Role.ADMIN else sent).delete()
    if role not in CAPABILITIES["projects"]:
        narrowed = end_management_of(tenant=tenant, user=current.user_id)
        ended += [EndedKey.of(key, revoked=key.revoked_at is not None) for key in narrowed]
    current.role = role
    current.save(update_fields=["role"])
    return ended


@transaction.atomic
def remove_member(*, tenant: Tenant, membership: Membership) -> list[EndedKey]:
    """Deactivate a membership, and return the keys that the member made, which are revoked.

    The user's sessions lose this tenant within a second. Open invitations of theirs end too: they could come back.
    """
    current = _locked(tenant, membership)
    _refuse_last_owner(tenant, current)
    current.is_active = False
    current.save(update_fields=["is_active"])
    ended = [EndedKey.of(key) for key in revoke_admin_keys_of(tenant=tenant, user=current.user_id)]
    ended += [EndedKey.of(key) for key in revoke_keys_of(tenant=tenant, user=current.user_id)]
    _open_invitations_of(current).delete()
    return ended


def _open_invitations_of(membership: Membership) -> QuerySet[Invitation]:
    """The member's invitations that nobody has taken up."""
    sent = Invitation.objects.of(membership.tenant).filter(invited_by=membership.user_id)
    return sent.filter(accepted_at=None)


def _locked(tenant: Tenant, membership: Membership) -> Membership:
    """Return the member's row, with the tenant's memberships locked so that two owners can't both leave."""
    rows = {row.id: row for row in Membership.objects.of(tenant).select_for_update().order_by("id")}
    if membership.id not in rows:
        raise ServiceError("member", "No such member.")
    return rows[membership.id]


def _refuse_last_owner(tenant: Tenant, membership: Membership) -> None:
    if membership.role != Role.OWNER or not membership.is_active:
        return
    owners = Membership.objects.of(tenant).filter(role=Role.OWNER, is_active=True, user__is_active=True)
    others = owners.exclude(id=membership.id)
    if not others.exists():
        raise ServiceError("role", "A tenant needs an owner: make somebody else owner first.")
