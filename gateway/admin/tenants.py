"""Tenants and their projects. A new tenant is made whole by the service."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminEmailInputWidget, UnfoldAdminSelectWidget

from billing.admin.base import take_over
from billing.models import Plan, Subscription, Wallet
from billing.unit import format_credits
from gateway.admin.base import KeptAdmin
from gateway.models import Project, Tenant
from gateway.services import members, tenants


class NewTenantForm(forms.ModelForm):  # type: ignore[type-arg] # can't be subscripted when it runs
    """What a new tenant needs."""

    owner_email = forms.EmailField(widget=UnfoldAdminEmailInputWidget, help_text="Gets an invitation by mail.")
    plan = forms.ChoiceField(widget=UnfoldAdminSelectWidget)

    class Meta:
        model = Tenant
        fields = ["name", "slug"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        plans = Plan.objects.filter(is_offered=True).order_by("name").values_list("slug", "name")
        field = self.fields["plan"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(plans)


@admin.register(Tenant)
class TenantAdmin(KeptAdmin):
    """Customers."""

    list_display = ["name", "slug", "plan", "available", "is_active", "created_at"]
    list_filter = ["is_active"]
    search_fields = ["name", "slug"]
    prepopulated_fields = {"slug": ["name"]}
    actions = ["deactivate", "activate"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        """Return the tenants with plan and available credit."""
        active = Subscription.objects.filter(tenant=OuterRef("pk"), state=Subscription.State.ACTIVE)
        wallet = Wallet.objects.filter(tenant=OuterRef("pk"), name="main")
        rows: QuerySet[Tenant] = super().get_queryset(request)
        return rows.annotate(
            plan_name=Subquery(active.values("version__plan__name")[:1]),
            available=Subquery(wallet.values(sum=F("posted") - F("held") + F("overdraft_limit"))[:1]),
        )

    def get_form(self, request: HttpRequest, obj: Tenant | None = None, change: bool = False, **options: Any) -> Any:
        """Ask for owner and plan of a new tenant."""
        if obj is None:
            options["form"] = NewTenantForm
        return super().get_form(request, obj, change, **options)

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        """Return what can be seen and changed."""
        if obj is None:
            return ["name", "slug", "owner_email", "plan"]
        return ["name", "slug", "is_active", "stores_prompts", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        """A slug stands in links and headers: it stays."""
        return ["slug", "created_at"] if obj else []

    def get_prepopulated_fields(self, request: HttpRequest, obj: Tenant | None = None) -> dict[str, Any]:
        """Only a new tenant's slug follows its name."""
        return {} if obj else dict(self.prepopulated_fields)

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """Make a new tenant whole, and send its owner the invitation."""
        if change:
            super().save_model(request, obj, form, change)
            return
        asked = form.cleaned_data
        made = tenants.create_tenant(
            name=asked["name"], slug=asked["slug"], owner_email=asked["owner_email"], plan=asked["plan"]
        )
        members.send_invitation(invitation=made.invitation, address=made.invitation_address)
        take_over(obj, made.tenant)
        messages.info(request, f"The owner's invitation, also sent by mail: {made.invitation_address}")

    @display(description="Plan", ordering="plan_name")
    def plan(self, tenant: Any) -> str:
        """The plan of the active subscription."""
        return tenant.plan_name or "–"

    @display(description="Available credits", ordering="available")
    def available(self, tenant: Any) -> str:
        """What a new request may hold."""
        return "–" if tenant.available is None else format_credits(tenant.available)

    @action(description="Deactivate", permissions=["change"])
    def deactivate(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Stop everything of these tenants within a second."""
        for tenant in queryset:
            tenants.deactivate_tenant(tenant=tenant)
            self.log_change(request, tenant, "Deactivated.")

    @action(description="Activate", permissions=["change"])
    def activate(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Let these tenants go on."""
        for tenant in queryset:
            tenants.activate_tenant(tenant=tenant)
            self.log_change(request, tenant, "Activated.")


@admin.register(Project)
class ProjectAdmin(KeptAdmin):
    """Parts of tenants."""

    list_display = ["name", "tenant", "is_active", "created_at"]
    list_filter = ["is_active"]
    list_select_related = ["tenant"]
    search_fields = ["name", "tenant__name", "tenant__slug"]
    autocomplete_fields = ["tenant"]
    fields = ["tenant", "name", "is_active"]

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> list[str]:
        """A project stays its tenant's: usage refers to both."""
        return ["tenant"] if obj else []
