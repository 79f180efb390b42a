"""Subscriptions: "add" subscribes a tenant, "change" moves it to another plan."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from billing.admin.base import ServiceAdmin, ServiceForm, take_over
from billing.models import Plan, Subscription
from billing.services import plans


class SubscribeForm(ServiceForm):
    """The form of a new subscription."""

    plan = forms.ModelChoiceField(Plan.objects.filter(is_offered=True), widget=UnfoldAdminSelectWidget)

    class Meta:
        model = Subscription
        fields = ["tenant", "plan", "time_zone"]


class ChangePlanForm(ServiceForm):
    """The form of a change of plan."""

    plan = forms.ModelChoiceField(Plan.objects.all(), widget=UnfoldAdminSelectWidget)
    at_once = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Also when the new plan gives less credit; otherwise that waits for the end of the month.",
    )

    class Meta:
        model = Subscription
        fields = ["plan", "at_once"]


@admin.register(Subscription)
class SubscriptionAdmin(ServiceAdmin):
    """Subscriptions of tenants to plans."""

    add_form = SubscribeForm
    form = ChangePlanForm
    list_display = ["tenant", "version", "display_next", "state", "granted_until", "created_at"]
    list_filter = ["state", "version__plan"]
    list_select_related = ["tenant", "version__plan", "next_version__plan"]
    search_fields = ["tenant__name", "tenant__slug"]
    raw_id_fields = ["tenant"]
    ordering = ["-created_at"]
    readonly_fields = ["tenant", "version", "display_next", "state", "anchor", "time_zone", "granted_until", "ended_at"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return super().get_fields(request, obj)
        shown = list(self.readonly_fields)
        return [*shown, "plan", "at_once"] if self.has_change_permission(request, obj) else shown

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_active = obj is None or obj.state == Subscription.State.ACTIVE
        return is_active and bool(super(ServiceAdmin, self).has_change_permission(request, obj))

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"time_zone": "UTC", **super().get_changeform_initial_data(request)}

    @display(description="Next month's plan")
    def display_next(self, subscription: Subscription) -> str:
        return str(subscription.next_version) if subscription.next_version_id else "–"

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        wanted = form.cleaned_data["plan"].slug
        if change:
            made = plans.change_plan(obj.tenant_id, wanted, at_once=form.cleaned_data["at_once"])
        else:
            made = plans.subscribe(obj.tenant_id, wanted, time_zone=form.cleaned_data["time_zone"])
        take_over(obj, made)
