"""Operators' roles (groups that `setup` creates), and the rule that nobody grants permissions that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q, QuerySet

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


def _labels(permissions: QuerySet[Permission]) -> set[str]:
    names = permissions.values_list("content_type__app_label", "codename")
    return {f"{app}.{codename}" for app, codename in names}
