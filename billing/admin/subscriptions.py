"""Subscriptions: "add" subscribes a tenant, "change" moves it to another plan."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from billing.admin.base import ReasonForm, ServiceAdmin, ServiceForm, take_over, tool
from billing.models import Plan, Subscription
from billing.services import plans


class SubscribeForm(ServiceForm):
    """The form of a new subscription."""

    plan = forms.ModelChoiceField(Plan.objects.filter(is_offered=True))

    class Meta:
        model = Subscription
        fields = ["tenant", "plan", "time_zone"]


class ChangePlanForm(ServiceForm):
    """The form of a change of plan."""

    plan = forms.ModelChoiceField(Plan.objects.all())
    at_once = forms.BooleanField(
        required=False,
        help_text="Also when the new plan gives less credit; otherwise that waits for the end of the month.",
    )

    class Meta:
        model = Subscription
        fields = ["plan", "at_once"]


class EndForm(ReasonForm):
    """When a subscription ends, and why."""

    when = forms.ChoiceField(choices=[("month", "With its current month"), ("now", "At once")])
    field_order = ("when", "reason")


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
    row_tools = ["end"]
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

    @admin.display(description="Next month's plan")
    def display_next(self, subscription: Subscription) -> str:
        if subscription.is_ending:
            return "none: it ends"
        return str(subscription.next_version) if subscription.next_version_id else "–"

    def has_end_permission(self, request: HttpRequest, one: Any = None) -> bool:
        """Whether this operator may end subscriptions."""
        return request.user.has_perm("billing.change_subscription")

    @tool("End…", path="end", permission="end")
    def end(self, request: HttpRequest, one: Subscription) -> HttpResponse:
        """Say what follows and ask when; then end the subscription."""
        if one.state != Subscription.State.ACTIVE:
            messages.info(request, f"{one} has ended already.")
            return HttpResponseRedirect(reverse("admin:billing_subscription_change", args=[one.pk]))

        def act(given: dict[str, Any]) -> str:
            ended = plans.end(one.tenant_id, at_once=given["when"] == "now")
            when = f"ends on {ended.granted_until:%Y-%m-%d %H:%M} UTC" if ended.is_ending else "has ended"
            return f"The subscription {when}: {given['reason']}"

        told = (
            "Without a subscription the tenant's requests are refused (403 no_subscription), and no month's credit "
            "follows. Credit that it has stays as long as it would have: void its grants to take it back.\n\n"
            "An end with the month can be taken back by choosing a plan before."
        )
        return self.confirmed(request, one, EndForm, act, title=f"End {one}", told=told, button="End")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        wanted = form.cleaned_data["plan"].slug
        if change:
            made = plans.change_plan(obj.tenant_id, wanted, at_once=form.cleaned_data["at_once"])
        else:
            made = plans.subscribe(obj.tenant_id, wanted, time_zone=form.cleaned_data["time_zone"])
        take_over(obj, made)
