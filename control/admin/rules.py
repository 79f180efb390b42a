"""Routing rules, to look at: they are made, ordered, changed and tried on the operator's page of routing."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from billing.admin.base import ReadOnlyAdmin, RowsInline, tool
from routing.catalogue import ceiling_of
from routing.models import RouteRule, RouteTarget
from routing.places import told


class TargetInline(RowsInline):
    """The models that a rule may choose."""

    model = RouteTarget
    extra = 0


@admin.register(RouteRule)
class RouteRuleAdmin(ReadOnlyAdmin):
    """Rules in the order in which they are tried."""

    list_display = ["name", "priority", "plan", "task", "example_count", "display_ceiling", "is_active"]
    list_filter = ["is_active", "plan", "task"]
    search_fields = ["name", "plan", "task"]
    inlines = [TargetInline]
    list_tools = ["rules"]
    row_tools = ["edit"]

    @admin.display(description="Examples")
    def example_count(self, rule: RouteRule) -> int:
        """The number of examples."""
        return len(rule.examples)

    @admin.display(description="Ceiling")
    def display_ceiling(self, rule: RouteRule) -> str:
        """The ceilings of price and time."""
        ceiling = ceiling_of(rule)
        return "–" if ceiling is None else told(ceiling)

    @tool("Routing", path="routing", permission="view")
    def rules(self, request: HttpRequest) -> HttpResponse:
        """Lead to the rules in their order, and to where a request would go."""
        return redirect("operate-routing")

    @tool("Change", path="edit", permission="view")
    def edit(self, request: HttpRequest, rule: RouteRule) -> HttpResponse:
        """Lead to the operator's page of the rule."""
        return redirect("operate-rule", rule.pk)
