"""Tenants and their projects. `tenancy.services.tenants` creates new ones."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from base.units import format_credits
from billing.admin.base import take_over, tool
from billing.models import Plan, Subscription, Wallet
from billing.writer.view import free_of
from control.admin.base import KeptAdmin
from tenancy.models import Project, Tenant
from tenancy.services import members, tenants


class NewTenantForm(forms.ModelForm):  # type: ignore[type-arg] # can't be subscripted when it runs
    """Fields of the form for a new tenant."""

    owner_email = forms.EmailField(help_text="Gets an invitation by mail.")
    plan = forms.ChoiceField()

    class Meta:
        model = Tenant
        fields = ["name", "slug"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        plans = Plan.objects.filter(is_offered=True).order_by("name").values_list("slug", "name")
        field = self.fields["plan"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(plans)


class TypedSlugForm(forms.Form):
    """The slug of a tenant, typed to confirm."""

    slug = forms.CharField(strip=True)

    def __init__(self, tenant: Tenant, data: Any = None) -> None:
        super().__init__(data)
        self.wanted = tenant.slug
        self.fields["slug"].label = f"Type the slug “{tenant.slug}” to confirm"

    def clean_slug(self) -> str:
        """Refuse another slug."""
        slug: str = self.cleaned_data["slug"]
        if slug != self.wanted:
            raise forms.ValidationError(f"That is not the slug: type “{self.wanted}”.")
        return slug


@admin.register(Tenant)
class TenantAdmin(KeptAdmin):
    """Customers."""

    list_display = ["name", "slug", "plan", "available", "is_active", "created_at"]
    list_filter = ["is_active"]
    search_fields = ["name", "slug"]
    prepopulated_fields = {"slug": ["name"]}
    actions = ["deactivate", "activate"]
    row_tools = ["new_key", "deactivate_one"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        """Return the tenants with plan and available credit."""
        active = Subscription.objects.filter(tenant=OuterRef("pk"), state=Subscription.State.ACTIVE)
        wallet = Wallet.objects.filter(tenant=OuterRef("pk"), name="main")
        rows: QuerySet[Tenant] = super().get_queryset(request)
        return rows.annotate(
            plan_name=Subquery(active.values("version__plan__name")[:1]),
            available=Subquery(wallet.values(sum=F("posted") - F("held") + F("overdraft_limit"))[:1]),
            pools=Subquery(wallet.values("pools")[:1]),
        )

    def get_form(self, request: HttpRequest, obj: Tenant | None = None, change: bool = False, **options: Any) -> Any:
        """Ask for owner and plan of a new tenant."""
        if obj is None:
            options["form"] = NewTenantForm
        return super().get_form(request, obj, change, **options)

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[Any]:
        """Return the fields that are shown and changed."""
        if obj is None:
            return ["name", "slug", "owner_email", "plan"]
        return ["name", "slug", "response_storage", "hosted_tools", *tenants.RETENTION, "is_active", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        """A slug stands in links and headers: it stays. Deactivating has a page of its own."""
        return ["slug", "is_active", "created_at"] if obj else []

    def get_prepopulated_fields(self, request: HttpRequest, obj: Tenant | None = None) -> dict[str, Any]:
        """Only a new tenant's slug follows its name."""
        return {} if obj else dict(self.prepopulated_fields)

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> None:
        """Create a new tenant with the service, and send its owner the invitation."""
        if change:
            for name in set(form.changed_data) & set(tenants.RETENTION):
                tenants.check_days(name, form.cleaned_data[name])
            super().save_model(request, obj, form, change)
            return
        asked = form.cleaned_data
        made = tenants.create_tenant(
            name=asked["name"], slug=asked["slug"], owner_email=asked["owner_email"], plan=asked["plan"]
        )
        members.send_invitation(invitation=made.invitation, address=made.invitation_address)
        take_over(obj, made.tenant)
        messages.info(request, f"The owner's invitation, also sent by mail: {made.invitation_address}")

    @admin.display(description="Plan", ordering="plan_name")
    def plan(self, tenant: Any) -> str:
        """The plan of the active subscription."""
        return tenant.plan_name or "–"

    @admin.display(description="Available credits", ordering="available")
    def available(self, tenant: Any) -> str:
        """Credits that new requests of every model may hold, the overdraft included."""
        if tenant.available is None:
            return "–"
        return format_credits(tenant.available - free_of(tenant.pools), separator=",")

    @tool("New API key", path="new-key", permission="new_key")
    def new_key(self, request: HttpRequest, tenant: Tenant) -> HttpResponse:
        """Go to the form of a key for one of this tenant's projects."""
        return redirect(f"{reverse('admin:gateway_apikey_add')}?tenant={tenant.pk}")

    def has_new_key_permission(self, request: HttpRequest, tenant: Any = None) -> bool:
        """Whether this operator may make keys."""
        return request.user.has_perm("gateway.add_apikey")

    @admin.action(description="Deactivate…", permissions=["change"])
    def deactivate(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        """Go to the page that asks; one tenant at a time."""
        if len(queryset) != 1:
            messages.error(request, "Deactivate one tenant at a time: its page says what ends.")
            return None
        return redirect("admin:gateway_tenant_deactivate_one", queryset[0].pk)

    @tool("Deactivate…", path="deactivate", permission="change")
    def deactivate_one(self, request: HttpRequest, tenant: Tenant) -> HttpResponse:
        """Say what ends and ask for the tenant's slug; once it is typed, stop everything of it within a second."""
        back = reverse("admin:gateway_tenant_change", args=[tenant.pk])
        if not tenant.is_active:
            messages.info(request, f"{tenant} is deactivated already.")
            return redirect(back)
        form, ends = TypedSlugForm(tenant, request.POST or None), tenants.what_ends(tenant=tenant)
        if form.is_valid():
            tenants.deactivate_tenant(tenant=tenant)
            self.log_change(request, tenant, "Deactivated.")
            messages.success(request, f"{tenant} is deactivated: {ends}. Credit, usage and audit trail are kept.")
            return redirect(back)
        return self.asking(
            request,
            form,
            title=f"Deactivate {tenant}",
            template="admin/gateway/tenant/deactivate.html",
            tenant=tenant,
            ends=ends,
            button="Deactivate",
            is_grave=True,
            back=back,
        )

    @admin.action(description="Activate", permissions=["change"])
    def activate(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Let these tenants go on."""
        if erased := [tenant for tenant in queryset if tenant.erased_at is not None]:
            messages.error(request, f"{erased[0]} was erased: nobody and nothing is left that could go on.")
        activated = [tenant for tenant in queryset if not tenant.is_active and tenant.erased_at is None]
        for tenant in activated:
            tenants.activate_tenant(tenant=tenant)
            self.log_change(request, tenant, "Activated.")
        names = ", ".join(map(str, activated))
        messages.success(request, f"{names} can go on: keys and members work again." if names else "All were active.")


@admin.register(Project)
class ProjectAdmin(KeptAdmin):
    """Parts of tenants."""

    list_display = ["name", "tenant", "is_active", "created_at"]
    list_filter = ["is_active"]
    search_fields = ["name", "tenant__name", "tenant__slug"]
    autocomplete_fields = ["tenant"]
    fields = ["tenant", "name", "is_active"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Project]:
        """Return the projects with their tenants, whose names stand beside theirs wherever one is chosen."""
        rows: QuerySet[Project] = super().get_queryset(request)
        return rows.select_related("tenant")

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> list[str]:
        """A project stays its tenant's: usage refers to both."""
        return ["tenant"] if obj else []
