"""The catalogue's admin: public models and rules. Deployments, with their live state, are in gateway's."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display

from routing.models import PublicModel, RouteRule, RouteTarget


@admin.register(PublicModel)
class PublicModelAdmin(ModelAdmin):
    """Models as tenants see them."""

    list_display = ["name", "kinds", "context_length", "rate_card", "deployments_active", "is_active"]
    list_filter = ["is_active"]
    search_fields = ["name", "description"]
    fields = ["name", "kinds", "context_length", "rate_card", "description", "is_active"]
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[PublicModel]:
        """Return the models with the number of their active deployments."""
        rows: QuerySet[PublicModel] = super().get_queryset(request)
        return rows.annotate(active_count=Count("deployments", filter=Q(deployments__is_active=True)))

    @display(description="Deployments", ordering="active_count")
    def deployments_active(self, model: PublicModel) -> int:
        """How many places serve it."""
        count: int = model.active_count  # type: ignore[attr-defined] # annotated above
        return count


class TargetInline(TabularInline):
    """The models that a rule may choose."""

    model = RouteTarget
    extra = 1
    autocomplete_fields = ["model"]


@admin.register(RouteRule)
class RouteRuleAdmin(ModelAdmin):
    """Rules in the order in which they are tried."""

    list_display = ["name", "priority", "plan", "task", "min_prompt_tokens", "max_prompt_tokens", "is_active"]
    list_filter = ["is_active", "plan", "task"]
    search_fields = ["name", "plan", "task"]
    inlines = [TargetInline]
    show_full_result_count = False
