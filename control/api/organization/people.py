"""Users, invitations, and the admin keys themselves."""

from __future__ import annotations

from django.shortcuts import get_object_or_404
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from control.api.organization.base import Body, OrganizationView, unix
from control.api.organization.projects import expiry_of
from control.throttles import InvitationThrottle
from gateway.errors.refusal import Refusal
from tenancy.models import AdminAPIKey, Invitation, Membership
from tenancy.services import admin_keys, members

_ROLES = {"owner": Membership.Role.OWNER, "reader": Membership.Role.MEMBER}


def _role_of(role: str) -> str:
    """Return our role for OpenAI's; our own names are taken too."""
    return _ROLES.get(role, role)


def _shown_role(role: str) -> str:
    return "owner" if role == Membership.Role.OWNER else "reader"


def shown_user(membership: Membership) -> Body:
    """Return a member as OpenAI shows users; `sluice_role` is the role by our name."""
    user = membership.user
    return {
        "id": str(user.id),
        "object": "organization.user",
        "email": user.email,
        "name": user.name,
        "role": _shown_role(membership.role),
        "sluice_role": membership.role,
        "added_at": unix(membership.created_at),
    }


class UsersView(OrganizationView):
    """The tenant's active members."""

    def get(self, request: Request) -> Response:
        """List the members."""
        mine = Membership.objects.of(self.tenant).filter(is_active=True).select_related("user")
        if emails := self.several("emails"):
            mine = mine.filter(user__email__in=[email.lower() for email in emails])
        return self.page(mine, shown_user, order="user_id")


class UserView(OrganizationView):
    """One member."""

    def _membership(self, user: str) -> Membership:
        mine = Membership.objects.of(self.tenant).filter(is_active=True).select_related("user")
        membership: Membership = get_object_or_404(mine, user=user)
        return membership

    def get(self, request: Request, user: str) -> Response:
        """Show the member."""
        return Response(shown_user(self._membership(user)))

    def post(self, request: Request, user: str) -> Response:
        """Give another role; a tenant keeps an owner. Says which keys of theirs ended or lost "management"."""
        membership, role = self._membership(user), _role_of(self.text(self.body("role"), "role"))
        ended = members.change_role(tenant=self.tenant, membership=membership, role=role)
        membership.role = role
        return Response({**shown_user(membership), "sluice_ended_keys": [str(key.id) for key in ended]})

    def delete(self, request: Request, user: str) -> Response:
        """Remove the member; a tenant keeps an owner. Says which keys of theirs were revoked."""
        ended = members.remove_member(tenant=self.tenant, membership=self._membership(user))
        answer = {"object": "organization.user.deleted", "id": user, "deleted": True}
        return Response({**answer, "sluice_ended_keys": [str(key.id) for key in ended]})


def shown_invite(invitation: Invitation) -> Body:
    """Return an invitation as OpenAI shows it."""
    status = "expired" if invitation.expires_at <= timezone.now() else "pending"
    return {
        "id": str(invitation.id),
        "object": "organization.invite",
        "email": invitation.email,
        "role": _shown_role(invitation.role),
        "sluice_role": invitation.role,
        "status": "accepted" if invitation.accepted_at is not None else status,
        "created_at": unix(invitation.created_at),
        "expires_at": unix(invitation.expires_at),
        "accepted_at": unix(invitation.accepted_at),
        "projects": [],
    }


class InvitesView(OrganizationView):
    """Offers to join the tenant."""

    def get_throttles(self) -> list[BaseThrottle]:
        """Count invitations by tenant too."""
        return [*super().get_throttles(), *([InvitationThrottle()] if self.request.method == "POST" else [])]

    def get(self, request: Request) -> Response:
        """List the invitations."""
        return self.page(Invitation.objects.of(self.tenant), shown_invite)

    def post(self, request: Request) -> Response:
        """Send an invitation by mail. Members act in all projects, so none can be named."""
        data = self.body("email", "role", "projects")
        if data.get("projects"):
            message = "Members of a tenant act in all of its projects: leave 'projects' out."
            raise Refusal(400, "unsupported_parameter", message, param="projects")
        email, role = self.text(data, "email", most=members.LONGEST_ADDRESS), _role_of(self.text(data, "role"))
        key = self.access.admin_key
        by = None if key is None else key.created_by
        invitation, _ = members.invite_by_mail(tenant=self.tenant, email=email, role=role, by=by)
        return Response(shown_invite(invitation))


class InviteView(OrganizationView):
    """One invitation."""

    def get(self, request: Request, invite: str) -> Response:
        """Show the invitation."""
        return Response(shown_invite(get_object_or_404(Invitation.objects.of(self.tenant), pk=invite)))

    def delete(self, request: Request, invite: str) -> Response:
        """Take the invitation back while it is open."""
        found = get_object_or_404(Invitation.objects.of(self.tenant), pk=invite)
        members.withdraw_invitation(tenant=self.tenant, invitation=found)
        return Response({"object": "organization.invite.deleted", "id": invite, "deleted": True})


def shown_admin_key(key: AdminAPIKey) -> Body:
    """Return an admin key without its secret."""
    by = key.created_by
    owner: Body = {
        "type": "service_account",
        "object": "organization.service_account",
        "name": key.name,
        "role": "owner",
    }
    if by is not None:
        person = {"id": str(by.id), "name": by.name or by.email, "created_at": unix(by.date_joined)}
        owner = {"type": "user", "object": "organization.user", **person, "role": "owner"}
    return {
        "id": str(key.id),
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": f"{admin_keys.ADMIN_PREFIX}…{key.last_four}",
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at),
        "last_used_at": unix(key.last_used_at),
        "owner": owner,
    }


class AdminKeysView(OrganizationView):
    """The tenant's admin keys; revoked ones are gone."""

    def get(self, request: Request) -> Response:
        """List the keys; `order` is `asc` or `desc`."""
        mine = AdminAPIKey.objects.of(self.tenant).filter(revoked_at=None).select_related("created_by")
        order = request.query_params.get("order", "asc")
        if order not in {"asc", "desc"}:
            raise Refusal(400, "invalid_value", "'order' is asc or desc.", param="order")
        return self.page(mine, shown_admin_key, order="id" if order == "asc" else "-id")

    def post(self, request: Request) -> Response:
        """Make a key; its `value` can't be had again."""
        data, by = self.body("name", "expires_in_seconds"), self.access.admin_key
        key, secret = admin_keys.create_admin_key(
            tenant=self.tenant,
            name=self.text(data, "name"),
            expires_at=expiry_of(data, None),
            created_by=None if by is None else by.created_by,  # whose it is too
        )
        return Response({**shown_admin_key(key), "value": secret}, headers={"Cache-Control": "no-store"})


class AdminKeyView(OrganizationView):
    """One admin key."""

    def _key(self, key: str) -> AdminAPIKey:
        mine = AdminAPIKey.objects.of(self.tenant).filter(revoked_at=None).select_related("created_by")
        found: AdminAPIKey = get_object_or_404(mine, pk=key)
        return found

    def get(self, request: Request, key: str) -> Response:
        """Show the key."""
        return Response(shown_admin_key(self._key(key)))

    def delete(self, request: Request, key: str) -> Response:
        """Revoke the key at once."""
        admin_keys.revoke_admin_key(tenant=self.tenant, key=self._key(key))
        return Response({"object": "organization.admin_api_key.deleted", "id": key, "deleted": True})
