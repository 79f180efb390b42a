"""A tenant's budgets: made, changed and removed by its owners and admins, by admin keys, and by operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from base.errors import ServiceError
from billing.models import SpendBudget, Subscription, Wallet
from billing.services import budgets
from billing.services.budgets import BudgetError, Standing
from routing.services.catalogue import models_seen
from tenancy.audit.trail import record
from tenancy.models import APIKey, Membership, Project, Tenant, User
from tenancy.services.access import hold_role

MOST_MODELS = 15  # of a group
_AMOUNT = 2**62
_Scope = SpendBudget.Scope
WINDOWS = {"day": "a day", "week": "a week", "month": "a month", "total": "in all"}


def of_tenant(tenant: Tenant) -> QuerySet[SpendBudget]:
    """Return the tenant's budgets that were not removed."""
    return SpendBudget.objects.filter(tenant=tenant.pk, removed_at=None)


def time_zone_of(tenant: Tenant) -> str:
    """Return the time zone of the tenant's subscription; UTC without one."""
    one = _subscription(tenant)
    return "UTC" if one is None else one.time_zone


@transaction.atomic
def make(
    *,
    tenant: Tenant,
    scope: str,
    window: str,
    amount: int,
    subject: str = "",
    models: Sequence[str] = (),
    name: str = "",
    is_hard: bool = True,
    thresholds: Sequence[int] = (80, 100),
    time_zone: str = "",
    follows_plan: bool = False,
    by: User | None = None,
    by_operator: bool = False,
) -> SpendBudget:
    """Return a new budget. `subject` is the id of a project, key or member, or the digest of an end user; `models` are
    the names of a group. Windows are those of the calendar in the tenant's time zone, or begin with its plan's months.

    Raises ServiceError that names what is wrong.
    """
    hold_role(tenant=tenant, user=by, capability="settings")
    about, called = _subject(tenant, scope, subject, models)
    _check_amount(amount)
    zone, anchor = time_zone or time_zone_of(tenant), _plans_anchor(tenant) if follows_plan else None
    wallet = Wallet.objects.only("id").filter(tenant=tenant, name="main").first()
    if wallet is None:
        raise ServiceError("", "This tenant has no wallet yet: it gets one with its first plan.")
    named = (name.strip() or f"{called} {WINDOWS[window]}")[:80]
    try:
        made = budgets.make_budget(
            wallet=wallet.pk, scope=scope, subject=about, window=window, amount=amount, name=named, is_hard=is_hard,
            thresholds=thresholds, time_zone=zone, anchor=anchor, by_operator=by_operator,
        )  # fmt: skip
    except BudgetError as error:
        raise ServiceError(error.field, str(error)) from error
    record("budget.created", made, tenant=tenant.pk, after=_told(made))
    return made


@transaction.atomic
def change(
    budget: SpendBudget, *, tenant: Tenant, by: User | None = None, by_operator: bool = False, **wanted: Any
) -> SpendBudget:
    """Return the budget with other `name`, `amount`, `is_hard` or `thresholds`; raise ServiceError as `make`."""
    hold_role(tenant=tenant, user=by, capability="settings")
    _check_owner(budget, by_operator=by_operator)
    if "amount" in wanted:
        _check_amount(wanted["amount"])
    if not wanted.get("name", "x").strip():
        del wanted["name"]  # it keeps the one that it has
    before = _told(budget)
    try:
        changed = budgets.change_budget(budget, **wanted)
    except BudgetError as error:
        raise ServiceError(error.field, str(error)) from error
    after = _told(changed)
    differs = [name for name in after if after[name] != before[name]]
    if differs:
        record(
            "budget.changed",
            changed,
            tenant=tenant.pk,
            before={name: before[name] for name in differs},
            after={name: after[name] for name in differs},
        )
    return changed


@transaction.atomic
def remove(budget: SpendBudget, *, tenant: Tenant, by: User | None = None, by_operator: bool = False) -> None:
    """Remove the budget; what it counted is there when it is made again."""
    hold_role(tenant=tenant, user=by, capability="settings")
    _check_owner(budget, by_operator=by_operator)
    before = _told(budget)
    budgets.remove_budget(budget)
    record("budget.deleted", budget, tenant=tenant.pk, before=before)


def standings(tenant: Tenant) -> list[Standing]:
    """Return the tenant's budgets with what counts in them now; three queries."""
    return budgets.standings(of_tenant(tenant).order_by("-id"))


def subjects_in_words(tenant: Tenant, found: Sequence[SpendBudget]) -> dict[UUID, str]:
    """Return whose spending each budget counts, as people call it; at most three queries."""
    asked: dict[str, set[UUID]] = {}
    for one in found:
        if one.scope in {_Scope.PROJECT, _Scope.KEY, _Scope.MEMBER}:
            asked.setdefault(one.scope, set()).add(UUID(one.subject))
    names: Mapping[str, dict[str, str]] = {
        scope: {str(pk): name for pk, name in _names(tenant, scope, ids)} for scope, ids in asked.items()
    }
    words = {}
    for one in found:
        if one.scope == _Scope.MODELS:
            first, *more = one.subject.split("\n")
            words[one.pk] = f"{first} and {len(more)} more" if more else first
        elif one.scope in names:
            words[one.pk] = names[one.scope].get(one.subject, "gone")
        else:
            words[one.pk] = {"tenant": "everything", "end_user": f"end user {one.subject[:8]}…"}[one.scope]
    return words


def _names(tenant: Tenant, scope: str, ids: set[UUID]) -> Any:
    if scope == _Scope.PROJECT:
        return Project.objects.of(tenant).filter(pk__in=ids).values_list("pk", "name")
    if scope == _Scope.KEY:
        return APIKey.objects.of(tenant).filter(pk__in=ids).values_list("pk", "name")
    return Membership.objects.of(tenant).filter(user__in=ids).values_list("user", "user__email")


def _subject(tenant: Tenant, scope: str, subject: str, models: Sequence[str]) -> tuple[str, str]:
    """Return what a budget keeps of whom it is for, and what they are called."""
    if scope == _Scope.TENANT:
        return "", "Everything"
    if scope == _Scope.MODELS:
        names = sorted(set(models))
        known = set(models_seen(tenant.pk, None).filter(name__in=names).values_list("name", flat=True))
        if not names or len(names) > MOST_MODELS:
            raise ServiceError("models", f"Name 1 to {MOST_MODELS} models.")
        if unknown := [one for one in names if one not in known]:
            raise ServiceError("models", f"There is no model {unknown[0][:120]!r}.")
        return "\n".join(names), names[0] if len(names) == 1 else f"{len(names)} models"
    if scope == _Scope.END_USER:
        if not subject:
            raise ServiceError("subject", "Name the end user, as requests do in `user`.")
        return subject, "An end user"
    try:
        found = list(_names(tenant, scope, {UUID(subject)}))
    except ValueError:
        found = []
    if not found:
        raise ServiceError("subject", f"There is no {scope} {subject[:60]!r}: send its id.")
    [(pk, called)] = found
    return str(pk), called


def _plans_anchor(tenant: Tenant) -> datetime:
    one = _subscription(tenant)
    if one is None:
        raise ServiceError("follows_plan", "This tenant has no plan whose months it could follow.")
    return one.anchor


def _subscription(tenant: Tenant) -> Subscription | None:
    return Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE).first()


def _check_amount(amount: int) -> None:
    if not 0 <= amount <= _AMOUNT:
        raise ServiceError("limit", f"It must be between 0 and {_AMOUNT} µcr.")


def _check_owner(budget: SpendBudget, *, by_operator: bool) -> None:
    if budget.by_operator and not by_operator:
        raise ServiceError("", "Your operator set this budget: ask them to change it.")


def _told(budget: SpendBudget) -> dict[str, Any]:
    fields = ("name", "scope", "window", "is_hard", "thresholds")
    return {**{name: getattr(budget, name) for name in fields}, "limit_micro": budget.amount}
