"""Settings of a tenant: what is stored and for how long, its projects, and everything that it has as one archive."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.errors import ServiceError
from control.belongings.download import tenants_archive
from control.console.tenancy import Place, tenant_page
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import APIKey, Project, Tenant
from tenancy.services import tenants

MOST_PROJECTS = 200

_KEPT = {
    "response_days": "Stored responses",
    "file_days": "Files",
    "batch_days": "Batches that have ended",
    "refusal_days": "Refused requests",
}


class SettingsForm(forms.Form):
    """A tenant's settings; those count as changed that are other than the page showed, whatever they are by now."""

    response_storage = forms.ChoiceField(
        choices=Tenant.Storage.choices, widget=forms.RadioSelect, show_hidden_initial=True
    )
    hosted_tools = forms.ChoiceField(
        choices=Tenant.HostedTools.choices, widget=forms.RadioSelect, show_hidden_initial=True
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, label in _KEPT.items():
            most = tenants.most_days(name)
            self.fields[name] = forms.IntegerField(
                label=f"{label} (at most {most})",
                min_value=1,
                max_value=most,
                required=False,
                show_hidden_initial=True,
                widget=forms.NumberInput(attrs={"placeholder": most}),
            )

    def days(self) -> list[forms.BoundField]:
        """Return the fields of how long rows are kept."""
        return [self[name] for name in _KEPT]


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def tenant_settings(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the settings, and change them."""
    if not place.access.may("settings"):
        raise Http404
    initial = {name: getattr(place.tenant, name) for name in (*tenants.SETTINGS, *tenants.RETENTION)}
    form = SettingsForm(request.POST if request.method == "POST" else None, initial=initial, label_suffix="")
    if form.is_valid():
        tenants.set_settings(tenant=place.tenant, **{name: form.cleaned_data[name] for name in form.changed_data})
        messages.success(request, "The settings are saved.")
        return redirect(reverse("console-settings") + place.query)
    context = place.context(
        page="settings",
        form=form,
        may_export=place.access.may("export"),
        may_rename=place.access.may("rename"),
        projects=_projects(place),
    )
    return render(request, "console/settings.html", context, status=400 if form.errors else 200)


@require_POST
@tenant_page
def rename(request: HttpRequest, place: Place) -> HttpResponse:
    """Give the tenant another name."""
    if not place.access.may("rename"):
        raise Http404
    try:
        named = tenants.rename_tenant(tenant=place.tenant, name=request.POST.get("name", ""))
    except ServiceError as refused:
        messages.error(request, refused.message)
    else:
        messages.success(request, f"The tenant is called {named.name} now; {named.slug}, its short name, stays.")
    return redirect(reverse("console-settings") + place.query + "#tenant")


@require_safe
@tenant_page
def tenant_export(request: HttpRequest, place: Place) -> StreamingHttpResponse:
    """Send the archive of everything that the tenant has."""
    if not place.access.may("export"):
        raise Http404
    return tenants_archive(place.tenant)


def _projects(place: Place) -> Table:
    """Return the projects, those in use first, with how many keys of each work."""
    works = Q(api_keys__revoked_at=None) & (Q(api_keys__expires_at=None) | Q(api_keys__expires_at__gt=timezone.now()))
    found = Project.objects.of(place.tenant).annotate(keys=Count("api_keys", filter=works))
    columns = [Column("Project", "name"), Column("State", "state"), Column("Keys", "number"), Column("Since", "day")]
    columns.append(Column("Change", "buttons", is_hidden=True))
    rows = []
    for one in found.order_by("-is_active", "name")[:MOST_PROJECTS]:
        address = reverse("console-project", args=[one.id]) + place.query
        state = State("in use", "good") if one.is_active else State("archived")
        buttons = [Button("Change", address, one.name)] if one.is_active else []
        name = Cell(one.name, address if one.is_active else "")
        rows.append(Row([name, state, one.keys, one.created_at, buttons], is_over=not one.is_active))
    return Table("Projects", columns, rows, "No project.", id="projects")


def _to_projects(place: Place) -> HttpResponse:
    return redirect(reverse("console-settings") + place.query + "#projects")


@require_POST
@tenant_page
def new_project(request: HttpRequest, place: Place) -> HttpResponse:
    """Make a project."""
    if not place.access.may("projects"):
        raise Http404
    try:
        made = tenants.create_project(tenant=place.tenant, name=request.POST.get("name", "")[:120])
    except ServiceError as refused:
        messages.error(request, refused.message)
    else:
        messages.success(request, f"The project “{made.name}” is there: its keys and usage are counted apart.")
    return _to_projects(place)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def project(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Show a project, and give it another name."""
    found = _own_project(place, pk)
    error, name = "", found.name
    if request.method == "POST":
        name = request.POST.get("name", "")
        try:
            tenants.rename_project(tenant=place.tenant, project=found, name=name)
        except ServiceError as refused:
            error = refused.message
        else:
            messages.success(request, f"The project is “{name.strip()}” now.")
            return _to_projects(place)
    return _project_page(request, place, found, {"error": error, "name": name})


@require_POST
@tenant_page
def archive_project(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Archive the project whose name is typed: its keys are refused within a second."""
    found = _own_project(place, pk)
    error = f"That is not the project’s name: type “{found.name}”."
    if request.POST.get("typed", "").strip() == found.name:
        try:
            tenants.archive_project(tenant=place.tenant, project=found)
        except ServiceError as refused:
            error = refused.message
        else:
            messages.success(request, f"“{found.name}” is archived: its keys are refused from now on.")
            return _to_projects(place)
    return _project_page(request, place, found, {"archive_error": error, "name": found.name})


def _own_project(place: Place, pk: UUID) -> Project:
    if not place.access.may("projects"):
        raise Http404
    found: Project = get_object_or_404(Project.objects.of(place.tenant).filter(is_active=True), pk=pk)
    return found


def _project_page(request: HttpRequest, place: Place, found: Project, told: dict[str, str]) -> HttpResponse:
    keys = APIKey.objects.of(place.tenant).filter(project=found, revoked_at=None).order_by("name")[:20]
    context = place.context(
        page="settings", project=found, keys=[f"{key.name} …{key.last_four}" for key in keys], **told
    )
    is_wrong = told.get("error") or told.get("archive_error")
    return render(request, "console/project.html", context, status=400 if is_wrong else 200)
