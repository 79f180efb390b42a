"""Public models. Here and not in `routing`, which knows no price lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.decorators import display

from gateway.admin.choices import NameField, NamesField, rate_cards
from inference.types import Kind
from routing.models import PublicModel

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # can't be subscripted when it runs


class PublicModelForm(ModelForm):
    """A model with its price list, both by name."""

    kinds = NamesField(lambda: [kind.value for kind in Kind], help_text="What it is for.")
    rate_card = NameField(rate_cards, help_text="The price list. Publish one under Rate cards first.")

    class Meta:
        model = PublicModel
        fields = ["name", "kinds", "context_length", "rate_card", "description", "is_active"]


@admin.register(PublicModel)
class PublicModelAdmin(ModelAdmin):
    """Models as tenants see them."""

    list_display = ["name", "display_kinds", "display_context", "rate_card", "deployments_active", "is_active"]
    list_filter = ["is_active"]
    search_fields = ["name", "description"]
    form = PublicModelForm
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[PublicModel]:
        """Return the models with the number of their active deployments."""
        rows: QuerySet[PublicModel] = super().get_queryset(request)
        return rows.annotate(active_count=Count("deployments", filter=Q(deployments__is_active=True)))

    @display(description="Kinds")
    def display_kinds(self, model: PublicModel) -> str:
        """What it is for."""
        return ", ".join(model.kinds)

    @display(description="Context", ordering="context_length")
    def display_context(self, model: PublicModel) -> str:
        """How many tokens."""
        return f"{model.context_length:,}"

    @display(description="Deployments", ordering="active_count")
    def deployments_active(self, model: PublicModel) -> int:
        """How many active deployments serve it."""
        count: int = model.active_count  # type: ignore[attr-defined] # annotated above
        return count
