"""The actor for a tenant in the console and management API, and the permissions of their role."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import QuerySet

from base.errors import RoleError
from tenancy.models import AdminAPIKey, APIKey, Membership, Tenant, User
from tenancy.services.scopes import MANAGEMENT

Role = Membership.Role
KEY = "key"
_EVERYBODY = frozenset({Role.OWNER, Role.ADMIN, Role.MEMBER, Role.BILLING, KEY})
CAPABILITIES = {
    "read": _EVERYBODY,
    "chat": _EVERYBODY - {Role.BILLING},
    "batches": _EVERYBODY - {Role.BILLING},  # and what stands in their files
    "wallet": _EVERYBODY - {Role.MEMBER},
    "pay": frozenset({Role.OWNER, Role.BILLING}),  # redeem vouchers, buy credit
    "keys": _EVERYBODY - {Role.BILLING, KEY},  # made, changed, rotated, revoked: a key makes no keys
    "projects": frozenset({Role.OWNER, Role.ADMIN, KEY}),
    "members": frozenset({Role.OWNER, Role.ADMIN}),
    "admin_keys": frozenset({Role.OWNER}),  # made: whoever has one may do what an owner may
    "settings": frozenset({Role.OWNER, Role.ADMIN}),
    "rename": frozenset({Role.OWNER}),
    "shared": frozenset({Role.OWNER}),  # conversations that members shared: withdrawn, and deleted once they left
    "audit": frozenset({Role.OWNER, Role.ADMIN, KEY}),
    "export": frozenset({Role.OWNER}),  # everything that the tenant has, what its members asked included
}
_WRITTEN_BY_MEMBERS = frozenset({"chat", "batches", "export"})


@dataclass(frozen=True, slots=True)
class Access:
    """A tenant together with the member, admin key or management key that acts for it."""

    tenant: Tenant
    role: str  # a Membership.Role, or "key"
    user: User | None = None
    key: APIKey | None = None
    admin_key: AdminAPIKey | None = None
    is_viewer: bool = False  # an operator who only looks: what members wrote stays hidden

    def keys(self) -> QuerySet[APIKey]:
        """Return the tenant's keys that may be seen: a key sees those of its own project."""
        mine = APIKey.objects.of(self.tenant)
        return mine if self.key is None else mine.filter(project=self.key.project_id)

    @property
    def person(self) -> User | None:
        """The member who acts, also by an admin key of theirs; None where nobody is known."""
        return self.user if self.admin_key is None else self.admin_key.created_by

    def maker_of(self, scopes: Collection[str]) -> User | None:
        """Return whose a new key with these scopes is: nobody's if an admin key makes it, unless it manages."""
        return self.person if MANAGEMENT in scopes else self.user

    @property
    def only_narrows(self) -> bool:
        """Whether keys may be given less here, never more: what an owner or admin limited binds a member."""
        return self.role == Role.MEMBER

    def may(self, capability: str) -> bool:
        """Return whether this role has `capability`, one of CAPABILITIES."""
        return self.role in CAPABILITIES[capability] and not (self.is_viewer and capability in _WRITTEN_BY_MEMBERS)

    def may_give_scopes(self, scopes: Collection[str]) -> bool:
        """Return whether a key with these scopes may be made: nobody makes one that may do more than they."""
        return self.role in CAPABILITIES["projects"] or MANAGEMENT not in scopes

    def may_give_role(self, role: str) -> bool:
        """Return whether `role` may be given or taken away: only owners decide about owners."""
        return self.may("members") and (role != Role.OWNER or self.role == Role.OWNER)

    def may_revoke(self, key: APIKey) -> bool:
        """Return whether `key` may be changed, rotated and revoked: members only those that they made."""
        if not self.may("keys"):
            return False
        return self.role != Role.MEMBER or (self.user is not None and key.created_by_id == self.user.id)


def hold_role(*, tenant: Tenant, user: User | None, capability: str) -> None:
    """Keep the role of a member until the transaction ends; raise RoleError where it lacks `capability`, or is over.

    So that nothing is made beside a removal. Operators need no role, nor do commands, which are nobody's.
    """
    if user is None or user.is_staff:
        return
    mine = Membership.objects.of(tenant).select_for_update().filter(user=user).first()
    if mine is not None and not (mine.is_active and mine.role in CAPABILITIES[capability]):
        raise RoleError("", "Your role doesn't allow this.")


def suspended_tenants(*, user: User) -> list[Tenant]:
    """Return the tenants that `user` would have access to, had an operator not suspended them."""
    return list(
        Tenant.objects.filter(is_active=False, memberships__user=user, memberships__is_active=True).order_by("name")
    )


def access_of_user(*, user: User, slug: str | None = None) -> Access | None:
    """Return the user's access to the tenant named `slug`, or to their first one; None where there is none."""
    mine = Membership.objects.unscoped().select_related("tenant").filter(user=user, is_active=True)
    mine = mine.filter(tenant__is_active=True).order_by("created_at", "id")
    membership = (mine.filter(tenant__slug=slug) if slug else mine).first()
    return None if membership is None else Access(tenant=membership.tenant, role=membership.role, user=user)


def accesses_of_user(*, user: User) -> list[Access]:
    """Return the user's access to each of their tenants, in the order in which they joined; one query."""
    mine = Membership.objects.unscoped().select_related("tenant").filter(user=user, is_active=True)
    joined = mine.filter(tenant__is_active=True).order_by("created_at", "id")
    return [Access(tenant=row.tenant, role=row.role, user=user) for row in joined]
