"""Operators' roles (groups that `setup` creates), and the rule that nobody grants permissions that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q, QuerySet

from base.errors import RoleError, ServiceError
from tenancy.models import User

APPS = ("gateway", "billing", "routing")
ROLES: Mapping[str, tuple[str, ...]] = {
    "viewer": (),
    "support": ("gateway.change_apikey", "gateway.delete_invitation"),
    "billing": (
        "billing.add_creditgrant",
        "billing.add_ledgertransfer",
        "billing.add_subscription",
        "billing.change_subscription",
        "billing.change_wallet",
        "billing.add_plan",
        "billing.change_plan",
        "billing.add_planversion",
        "billing.add_ratecard",
        "billing.add_ratecardversion",
        "billing.add_voucherbatch",
        "billing.change_voucher",
        "billing.add_rerating",
    ),
    "admin": APPS,
}
"""Role → its permissions beyond viewing everything; the name of an app means all of its permissions."""


@transaction.atomic
def ensure_roles() -> None:
    """Make each role's group have exactly its permissions; other groups stay as they are."""
    known = {
        f"{permission.content_type.app_label}.{permission.codename}": permission
        for permission in Permission.objects.filter(content_type__app_label__in=APPS).select_related("content_type")
    }
    for name, more in ROLES.items():
        may = {label for label in known if ".view_" in label or label in more or label.partition(".")[0] in more}
        missing = {label for label in more if label not in APPS} - known.keys()
        if missing:
            raise LookupError(f"{name}: there is no permission {min(missing)}")
        group, _ = Group.objects.get_or_create(name=name)
        group.permissions.set([known[label] for label in may])


def outranks(other: User, user: User) -> bool:
    """Return whether `other` has a permission that `user` lacks; then `user` may not change them.

    Permissions of a deactivated user count too, since whoever may change them may activate them.
    """
    if user.is_superuser or other == user:
        return False
    theirs = Permission.objects.filter(Q(group__user=other) | Q(user=other))
    return other.is_superuser or not _labels(theirs) <= user.get_all_permissions()


def may_give(user: User, groups: Iterable[Group]) -> bool:
    """Return whether `user` has all permissions of these groups."""
    if user.is_superuser:
        return True
    return _labels(Permission.objects.filter(group__in=list(groups))) <= user.get_all_permissions()


def groups_of(user: User) -> QuerySet[Group]:
    """Return the groups that `user` may give: those whose permissions they all have."""
    every = list(Group.objects.order_by("name"))
    return Group.objects.filter(pk__in=[group.pk for group in every if may_give(user, [group])]).order_by("name")


@transaction.atomic
def make_person(
    *, by: User, email: str, name: str = "", is_operator: bool = False, groups: Iterable[Group] = ()
) -> User:
    """Return a new user without a password, whose address `by` vouches for: they sign in by link, or set one by reset.

    Raises ServiceError naming the field that is wrong, RoleError for roles that `by` may not give.
    """
    email = email.strip().lower()
    if User.objects.filter(email=email).exists():
        raise ServiceError("email", "Another user has this address.")
    user = User.objects.create_user(email, name=name.strip())
    if is_operator:
        set_role(user=user, by=by, is_operator=True, groups=groups)
    return user


@transaction.atomic
def set_role(
    *, user: User, by: User, is_operator: bool, groups: Iterable[Group] = (), may_all: bool | None = None
) -> None:
    """Make `user` an operator with these roles, or none; `may_all` makes a superuser, or ends that; None leaves it.

    Raises RoleError where `by` would give what they lack, or change somebody who may do more; ServiceError for an end
    of one's own.
    """
    _require_rank(user, by)
    chosen = list(groups) if is_operator else []
    if not may_give(by, chosen):
        raise RoleError("groups", "You can't give a role that may do more than you.")
    if may_all is not None and may_all != user.is_superuser and not by.is_superuser:
        raise RoleError("may_all", "Only superusers make superusers.")
    if user == by and (not is_operator or (by.is_superuser and may_all is False)):
        raise ServiceError("", "You can't take this from yourself: ask another operator.")
    user.is_staff = is_operator
    if may_all is not None:
        user.is_superuser = may_all and is_operator
    user.save(update_fields=["is_staff", "is_superuser"])
    if set(user.groups.all()) != set(chosen):
        user.groups.set(chosen)


@transaction.atomic
def set_active(*, user: User, by: User, is_active: bool) -> None:
    """Deactivate a person, whose sessions and links end with their next request, or activate them again."""
    _require_rank(user, by)
    if user == by:
        raise ServiceError("", "You can't deactivate yourself: ask another operator.")
    user.is_active = is_active
    user.save(update_fields=["is_active"])


@transaction.atomic
def reset_second_factors(*, user: User, by: User) -> list[str]:
    """Remove a person's second factors and return their kinds: the password alone lets them in from then on.

    Raises RoleError for who is no superuser, ServiceError where there is none, or they are one's own: those are removed
    on one's own page, which asks for the password or a factor once more.
    """
    if not by.is_superuser:
        raise RoleError("", "Only superusers remove another person's second factors.")
    if user == by:
        raise ServiceError("", "Remove your own on your account page.")
    found = list(Authenticator.objects.select_for_update().filter(user=user).order_by("pk"))
    if not found:
        raise ServiceError("", f"{user.email} has no second factor.")
    for one in found:
        one.delete()
    return [one.type for one in found]


@transaction.atomic
def rename_person(*, user: User, by: User, name: str) -> None:
    """Give a person another name."""
    _require_rank(user, by)
    user.name = name.strip()
    user.save(update_fields=["name"])


def _require_rank(user: User, by: User) -> None:
    if outranks(user, by):
        raise RoleError("", f"{user.email} may do more than you: ask an operator who may do as much.")


def _labels(permissions: QuerySet[Permission]) -> set[str]:
    names = permissions.values_list("content_type__app_label", "codename")
    return {f"{app}.{codename}" for app, codename in names}
