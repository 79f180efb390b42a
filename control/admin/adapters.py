"""The form in which an operator makes a model of another one and a LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from base.errors import ServiceError
from control.admin.choices import NameField, rate_cards
from fleet.adapters import bases
from tenancy.models import Tenant

_FIELDS = {"base": "base", "name": "name", "source": "folder", "config": "folder", "file_id": "folder"}


class NewAdapterForm(forms.Form):
    """The fields of a new adapter."""

    folder = forms.CharField(
        max_length=500,
        help_text="On this machine: adapter_config.json and adapter_model.safetensors, as PEFT writes them.",
        widget=UnfoldAdminTextInputWidget,
    )
    base = NameField(bases, help_text="The model that it changes.")
    name = forms.CharField(max_length=60, help_text="Public name.", widget=UnfoldAdminTextInputWidget)
    rate_card = NameField(rate_cards, any_label="that of its base")
    description = forms.CharField(max_length=300, required=False, widget=UnfoldAdminTextInputWidget)
    tenant = forms.ModelChoiceField(
        Tenant.objects.filter(is_active=True),
        required=False,
        empty_label="everybody whose plan includes it",
        help_text="Who sees it. A tenant's own has its slug before the name, as acme/law, and counts among its plan's.",
        widget=UnfoldAdminSelectWidget,
    )

    def asked(self) -> dict[str, Any]:
        """Return what `add_adapter_folder` takes."""
        return {**self.cleaned_data, "folder": Path(self.cleaned_data["folder"])}

    def refuse(self, error: ServiceError) -> None:
        """Show why the service refused, at the field that it names."""
        self.add_error(_FIELDS.get(error.field), error.message)
