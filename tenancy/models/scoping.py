"""The manager of rows that belong to a tenant: a query outside a scope raises instead of answering for everybody.

It guards neither create, save, foreign-key access nor joins from an unscoped model; so services take `tenant`
explicitly and start from `Model.objects.of(tenant)`. It is django-scopes' manager as a class of its own, so that the
type checker can follow relations through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from django.db import models
from django_scopes import get_scope, scope, scopes_disabled
from django_scopes.manager import DisabledQuerySet

if TYPE_CHECKING:
    from tenancy.models.tenants import Tenant

M = TypeVar("M", bound=models.Model)


class TenantManager(models.Manager[M]):
    """Rows of the tenant in `django_scopes.scope(tenant=…)`; every query outside a scope raises ScopeError."""

    def get_queryset(self) -> models.QuerySet[M]:
        """Return the rows of the tenant in scope, all where scopes are disabled."""
        current = get_scope()
        if not current.get("_enabled", True):
            return super().get_queryset()
        if "tenant" not in current:
            refusing: models.QuerySet[M] = DisabledQuerySet(self.model, using=self._db, missing_scopes={"tenant"})
            return refusing
        return super().get_queryset().filter(tenant=current["tenant"])

    def all(self) -> models.QuerySet[M]:
        """Return what `get_queryset` does, raising at once where no scope is active."""
        return self.get_queryset().all()

    def of(self, tenant: Tenant) -> models.QuerySet[M]:
        """Return the rows of `tenant`, whatever scope is active."""
        with scope(tenant=tenant):
            return self.all()

    def unscoped(self) -> models.QuerySet[M]:
        """Return the rows of every tenant: for the operator, and for looking up by secret."""
        with scopes_disabled():
            return self.all()
