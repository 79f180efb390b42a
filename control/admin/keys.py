"""API keys: made by the service and shown once, on the page that the form leads to."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from base.errors import ServiceError
from billing.admin.base import named_in, state_mark, take_over
from control import made_keys
from control.admin.base import KeptAdmin
from control.operate.fields import NamesField, models
from control.screens.key_forms import RestrictionsForm, limits_in_words
from tenancy.models import APIKey, Project, User
from tenancy.services import keys
from tenancy.services.restrictions import LIMITS
from tenancy.services.scopes import SCOPES


class NewKeyForm(RestrictionsForm, forms.ModelForm):  # type: ignore[type-arg] # can't be subscripted when it runs
    """Fields of the form for a new key."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES],
        initial=keys.DEFAULT_SCOPES,
        widget=forms.CheckboxSelectMultiple,
        help_text="“management” lets the key list keys, make projects and read usage, wallet and audit trail.",
    )
    networks = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="IP networks; empty: from anywhere.",
    )
    allowed_models = NamesField(models, required=False, help_text="None chosen: all of the plan, also those to come.")

    class Meta:
        model = APIKey
        fields = ["name", "expires_at"]  # the admin adds `project` at each request, when scopes are lifted

    def clean(self) -> dict[str, Any]:
        """Refuse fields that the service would refuse."""
        asked = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                self.restrictions().checked(asked.get("project") or self.instance.project)
            except ServiceError as error:
                self.add_error(error.field if error.field in self.fields else None, error.message)
        return asked


@admin.register(APIKey)
class APIKeyAdmin(KeptAdmin):
    """Keys of all tenants; only names can be changed."""

    list_display = ["name", "tenant", "display_project", "shown", "state", "last_used_at", "created_at"]
    list_filter = [("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["tenant", "project__tenant"]
    search_fields = ["name", "tenant__name", "tenant__slug", "=last_four"]
    actions = ["revoke"]

    def get_form(self, request: HttpRequest, obj: APIKey | None = None, change: bool = False, **options: Any) -> Any:
        """Ask for project, scopes and expiry of a new key."""
        if obj is None:
            options |= {"form": NewKeyForm, "fields": ["name", "project", "expires_at"]}  # its others are no model's
        return super().get_form(request, obj, change, **options)

    def get_fields(self, request: HttpRequest, obj: APIKey | None = None) -> list[Any]:
        """Return the fields that are shown."""
        if obj is None:
            return ["name", "project", "scopes", "expires_at", "allowed_models", "networks", *LIMITS]
        shown = ["name", "tenant", "project", "shown", "scopes", "created_by", "created_at"]
        more = ["display_limits", "expires_at", "rotated_at", "previous_until", "revoked_at", "last_used_at"]
        return [*shown, *more]

    def get_readonly_fields(self, request: HttpRequest, obj: APIKey | None = None) -> list[str]:
        """A key stays what it is."""
        return [] if obj is None else [name for name in self.get_fields(request, obj) if name != "name"]

    def save_model(self, request: HttpRequest, obj: APIKey, form: Any, change: bool) -> None:
        """Make a new key by the service; its secret waits for `response_add` on the request alone."""
        if change:
            super().save_model(request, obj, form, change)
            return
        asked = form.cleaned_data
        key, secret = keys.create_key(
            tenant=asked["project"].tenant,
            project=asked["project"],
            name=asked["name"],
            scopes=asked["scopes"],
            expires_at=asked["expires_at"],
            restrictions=form.restrictions(),
            created_by=request.user if isinstance(request.user, User) else None,
        )
        take_over(obj, key)
        request.META["sluice.made_secret"] = secret

    def response_add(self, request: HttpRequest, obj: APIKey, post_url_continue: str | None = None) -> HttpResponse:
        """Go on to the page that shows the secret."""
        page = reverse("admin:gateway_apikey_made", args=[obj.pk])
        return made_keys.redirect_with(request.META.pop("sluice.made_secret"), obj, path=page)

    def get_urls(self) -> list[URLPattern]:
        """Add the page that shows a new key."""
        made = path("<uuid:pk>/made/", self.admin_site.admin_view(self.made), name="gateway_apikey_made")
        return [made, *super().get_urls()]

    def made(self, request: HttpRequest, pk: str) -> HttpResponse:
        """Show a new key's secret: here and never again."""
        key = get_object_or_404(APIKey.objects.select_related("tenant", "project"), pk=pk)
        if not self.has_view_permission(request, key):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": f"API key {key.name}",
            "opts": self.model._meta,
            "key": key,
            "secret": made_keys.secret_of(request, key),
        }
        page = TemplateResponse(request, "admin/gateway/apikey/made.html", context)
        return made_keys.shown(page, path=request.path)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with the tenant's project where it has one alone."""
        projects = _projects_of(request)
        only = projects[0] if projects is not None and len(projects) == 1 else None
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        return {"project": only.pk, **initial} if only is not None else initial

    def get_autocomplete_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Search all tenants' projects, unless the address names a tenant: then its own are a list."""
        return () if _projects_of(request) is not None else ("project",)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        """Offer projects that are active, of the tenant that the address names."""
        if db_field.name == "project":
            projects = _projects_of(request)
            active = Project.objects.filter(is_active=True).select_related("tenant")
            options["queryset"] = active if projects is None else projects
        return super().formfield_for_foreignkey(db_field, request, **options)

    @admin.display(description="Project", ordering="project__name")
    def display_project(self, key: APIKey) -> str:
        """The project's name: the tenant's stands beside it."""
        return key.project.name

    @admin.display(description="Limits")
    def display_limits(self, key: APIKey) -> str:
        """The key's limits, and the credits spent of them."""
        return "; ".join(limits_in_words(key)) or "those of the plan"

    @admin.display(description="Key")
    def shown(self, key: APIKey) -> str:
        """The key's prefix and last four characters, by which people recognise it."""
        return f"{key.prefix}…{key.last_four}"

    @admin.display(description="State")
    def state(self, key: APIKey) -> SafeString:
        """Whether the key is good now."""
        if key.revoked_at is not None:
            return state_mark("revoked", "bad")
        is_over = key.expires_at is not None and key.expires_at <= timezone.now()
        return state_mark("expired", "warn") if is_over else state_mark("active", "good")

    @admin.action(description="Revoke", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[APIKey]) -> None:
        """Make these keys useless within a second."""
        revoked = 0
        for key in queryset.select_related("tenant"):
            if keys.revoke_key(tenant=key.tenant, key=key):
                self.log_change(request, key, "Revoked.")
                revoked += 1
        messages.success(request, f"Revoked {revoked} of {len(queryset)}.")


def _projects_of(request: HttpRequest) -> QuerySet[Project] | None:
    """Return the active projects of the tenant that the address names; None where it names none."""
    tenant = named_in(request.GET.dict(), "tenant")
    if tenant is None:
        return None
    return Project.objects.filter(tenant=tenant, is_active=True).select_related("tenant").order_by("name")
