"""Budgets: list, make, change and remove. Owners, admins and admin keys do it; operators have a page of their own."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from base.units import format_credits
from billing.models import SpendBudget
from billing.services.budgets import MOST_PERCENT, Standing
from billing.services.budgets import standings as standings_of
from control.api.authentication import AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication
from control.api.base import NewestFirst, TenantView
from control.api.parsers import KnownFields
from gateway.generation.credit import end_user_digest
from tenancy.services import budgets
from tenancy.services.budgets import MOST_MODELS

_WRITERS: Any = [{"adminKey": []}, {"session": []}]
_LIMIT: dict[str, Any] = {"min_value": 0, "max_value": 2**62}
_Scope = SpendBudget.Scope


class BudgetSerializer(serializers.Serializer[Standing]):
    """A budget with what counts in its window of now; amounts are in µcr."""

    id = serializers.UUIDField(source="budget.id")
    name = serializers.CharField(source="budget.name")
    scope = serializers.ChoiceField(choices=_Scope.choices, source="budget.scope")
    subject = serializers.SerializerMethodField()
    models = serializers.SerializerMethodField()
    window = serializers.ChoiceField(choices=SpendBudget.Window.choices, source="budget.window")
    limit = serializers.IntegerField(source="budget.amount")
    limit_credits = serializers.SerializerMethodField()
    is_hard = serializers.BooleanField(source="budget.is_hard")
    thresholds = serializers.ListField(child=serializers.IntegerField(), source="budget.thresholds")
    time_zone = serializers.CharField(source="budget.time_zone")
    by_operator = serializers.BooleanField(source="budget.by_operator")
    spent = serializers.IntegerField()
    held = serializers.IntegerField()
    remaining = serializers.IntegerField(source="rest")
    resets_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField(source="budget.created_at")

    def get_subject(self, one: Standing) -> str | None:
        """Return the id of the project, key or member, or the end user's digest; null for the others."""
        return None if one.budget.scope in {_Scope.TENANT, _Scope.MODELS} else one.budget.subject

    def get_models(self, one: Standing) -> list[str]:
        """Return the names of the group's models; none for another scope."""
        return one.budget.subject.split("\n") if one.budget.scope == _Scope.MODELS else []

    def get_limit_credits(self, one: Standing) -> str:
        """Return the limit in credits, as people read it."""
        return format_credits(one.budget.amount or 0)


class BudgetTermsSerializer(KnownFields):
    """What can be changed of a budget."""

    name = serializers.CharField(max_length=80, required=False, allow_blank=True, help_text="Its name, for people.")
    limit = serializers.IntegerField(**_LIMIT, help_text="The most µcr that may be spent in a window.")
    is_hard = serializers.BooleanField(
        required=False, default=True, help_text="Whether it refuses what goes beyond it; a soft one only tells."
    )
    thresholds = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=MOST_PERCENT),
        required=False,
        default=[80, 100],
        max_length=5,
        help_text="Percent of the limit at which owners, admins, billing and web-hooks are told.",
    )


class NewBudgetSerializer(BudgetTermsSerializer):
    """A new budget. It counts from now on."""

    scope = serializers.ChoiceField(choices=_Scope.choices, help_text="Whose spending it counts.")
    window = serializers.ChoiceField(choices=SpendBudget.Window.choices, help_text="How often it begins anew.")
    subject = serializers.CharField(
        max_length=500,
        required=False,
        default="",
        help_text="The id of the project, key or member (their user's), or the end user as requests name it in `user`.",
    )
    models = serializers.ListField(
        child=serializers.CharField(max_length=120),
        required=False,
        default=[],
        max_length=MOST_MODELS,
        help_text="The models of the scope `models`, which have the budget together.",
    )
    time_zone = serializers.CharField(
        max_length=60, required=False, default="", help_text="As `Europe/Berlin`; left out, that of the plan's months."
    )
    follows_plan = serializers.BooleanField(
        required=False, default=False, help_text="Windows begin as the plan's months do, and not with the calendar's."
    )


class OfBudgets(TenantView):
    """A view of budgets, for admin keys too."""

    authentication_classes = [AdminKeyAuthentication, KeyAuthentication, TenantSessionAuthentication]
    reads = "wallet"
    writes = "settings"
    serializer_class: type[serializers.BaseSerializer[Any]] = BudgetSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> Any:
        """Return the tenant's budgets."""
        return budgets.of_tenant(self.tenant)

    def own(self, pk: str) -> SpendBudget:
        """Return the budget; 404 otherwise."""
        found: SpendBudget = get_object_or_404(self.get_queryset(), pk=pk)
        return found


class BudgetsView(OfBudgets):
    """The tenant's budgets."""

    @extend_schema(operation_id="budgets_list", summary="List budgets", responses=BudgetSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the budgets, newest first, with what was spent and is held in their windows of now."""
        page = self.paginate_queryset(self.get_queryset())
        shown: Any = standings_of(page or [])
        return self.get_paginated_response(BudgetSerializer(shown, many=True).data)

    @extend_schema(
        operation_id="budgets_create",
        summary="Make a budget",
        request=NewBudgetSerializer,
        responses={201: BudgetSerializer},
        auth=_WRITERS,
    )
    def post(self, request: Request) -> Response:
        """Make a budget. One that was removed for the same comes back with all that it counted."""
        wanted = NewBudgetSerializer(data=request.data)
        wanted.is_valid(raise_exception=True)
        data = dict(wanted.validated_data)
        if data["scope"] == _Scope.END_USER:
            data["subject"] = end_user_digest(self.tenant.id, data["subject"])
        made = budgets.make(tenant=self.tenant, amount=data.pop("limit"), by=self.access.person, **data)
        return Response(_shown(made), status=status.HTTP_201_CREATED)


class BudgetView(OfBudgets):
    """One budget."""

    @extend_schema(operation_id="budgets_retrieve", summary="Show a budget")
    def get(self, request: Request, pk: str) -> Response:
        """Show the budget."""
        return Response(_shown(self.own(pk)))

    @extend_schema(
        operation_id="budgets_change",
        summary="Change a budget",
        request=BudgetTermsSerializer(partial=True),
        responses={200: BudgetSerializer},
        auth=_WRITERS,
    )
    def patch(self, request: Request, pk: str) -> Response:
        """Change the fields that are given: they hold for the next request, and what was spent stays."""
        wanted = BudgetTermsSerializer(data=request.data, partial=True)
        wanted.is_valid(raise_exception=True)
        data = dict(wanted.validated_data)
        if "limit" in data:
            data["amount"] = data.pop("limit")
        return Response(_shown(budgets.change(self.own(pk), tenant=self.tenant, by=self.access.person, **data)))

    @extend_schema(operation_id="budgets_remove", summary="Remove a budget", responses={204: None}, auth=_WRITERS)
    def delete(self, request: Request, pk: str) -> Response:
        """Remove the budget. What it counted is there when it is made again."""
        budgets.remove(self.own(pk), tenant=self.tenant, by=self.access.person)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _shown(budget: SpendBudget) -> Any:
    [one] = standings_of([budget])
    return BudgetSerializer(one).data
