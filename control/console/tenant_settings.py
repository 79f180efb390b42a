"""What a tenant decides for itself, for its owners and admins: whether responses are stored, and what becomes of hosted
tools.
"""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from control.console.tenancy import Place, tenant_page
from tenancy.models import Tenant
from tenancy.services import tenants


class SettingsForm(forms.Form):
    """A tenant's settings; those count as changed that are other than the page showed, whatever they are by now."""

    response_storage = forms.ChoiceField(
        choices=Tenant.Storage.choices, widget=forms.RadioSelect, show_hidden_initial=True
    )
    hosted_tools = forms.ChoiceField(
        choices=Tenant.HostedTools.choices, widget=forms.RadioSelect, show_hidden_initial=True
    )


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def tenant_settings(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the settings, and change them."""
    if not place.access.may("settings"):
        raise Http404
    initial = {name: getattr(place.tenant, name) for name in tenants.SETTINGS}
    form = SettingsForm(request.POST if request.method == "POST" else None, initial=initial)
    if form.is_valid():
        tenants.set_settings(tenant=place.tenant, **{name: form.cleaned_data[name] for name in form.changed_data})
        messages.success(request, "The settings are saved.")
        return redirect(reverse("console-settings") + place.query)
    context = place.context(page="settings", form=form)
    return render(request, "console/settings.html", context, status=400 if form.errors else 200)
