"""Rate cards: a change of prices is a new version."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action
from unfold.widgets import UnfoldAdminTextareaWidget

from billing.admin.base import CreditsField, ServiceAdmin, ServiceForm, credits_column, take_over
from billing.models import Rate, RateCard, RateCardVersion
from billing.rating import CLASSES
from billing.services import cards
from billing.unit import parse_credits


@admin.register(RateCard)
class RateCardAdmin(ModelAdmin):
    """A named list of prices."""

    list_display = ["name"]
    search_fields = ["name"]
    ordering = ["name"]
    actions_detail = ["publish_new_version"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["name"] if obj is not None else []

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_publish_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether this operator may publish prices."""
        return request.user.has_perm("billing.add_ratecardversion")

    @action(description="Publish new prices", url_path="publish", permissions=["publish"])
    def publish_new_version(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Open the form of new prices, filled with the last ones."""
        return HttpResponseRedirect(f"{reverse('admin:billing_ratecardversion_add')}?card={object_id}")


class RateInline(TabularInline):
    """The rates of a version."""

    model = Rate
    extra = 0
    fields = ["tier_min_context", "usage_class", "display_rate"]
    readonly_fields = fields
    ordering = ["tier_min_context", "usage_class"]
    can_delete = False
    display_rate = credits_column("rate", "Credits per million tokens")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


_TIER = re.compile(r"(\d+)\s*:\s*(.+)")
_HELP = "Credits per million tokens."


class PublishPricesForm(ServiceForm):
    """Rates by class, and if need be other rates for long contexts."""

    input = CreditsField(help_text=_HELP)
    cache_read = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    cache_write_short = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    cache_write_long = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    output = CreditsField(help_text=_HELP)
    reasoning = CreditsField(required=False, help_text=f"{_HELP} Empty: as output.")
    tiers = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget,
        help_text="Other rates from a context length on, one line each, as: 32000: input 20, output 80",
    )
    request_fee = CreditsField(initial=0, help_text="Credits per request that ran.")

    class Meta:
        model = RateCardVersion
        fields = ["card", "effective_from", "note"]

    field_order = ["card", "effective_from", *CLASSES, "tiers", "request_fee", "note"]

    def __init__(self, *args: Any, **options: Any) -> None:
        """Let the moment be left empty."""
        super().__init__(*args, **options)
        self.fields["effective_from"].required = False
        self.fields["effective_from"].help_text = "Empty: from now on."

    def clean_tiers(self) -> dict[int, dict[str, int]]:
        """Return the further tiers: least context → class → rate."""
        tiers: dict[int, dict[str, int]] = {}
        for line in filter(None, (line.strip() for line in self.cleaned_data["tiers"].splitlines())):
            found = _TIER.fullmatch(line)
            if found is None:
                raise ValidationError(f"“{line}” doesn't read as “32000: input 20, output 80”")
            rates = tiers.setdefault(int(found[1]), {})
            for part in found[2].split(","):
                name, _, amount = part.strip().partition(" ")
                try:
                    rates[name] = parse_credits(amount)
                except ValueError as error:
                    raise ValidationError(str(error)) from error
        return tiers

    def rates(self) -> dict[int, dict[str, int]]:
        """Return all rates as typed."""
        base = {name: self.cleaned_data[name] for name in CLASSES if self.cleaned_data[name] is not None}
        return {**self.cleaned_data["tiers"], 0: base}


@admin.register(RateCardVersion)
class RateCardVersionAdmin(ServiceAdmin):
    """Published prices; "add" publishes new ones."""

    add_form = PublishPricesForm
    list_display = ["card", "effective_from", "published_at", "display_fee", "note"]
    list_filter = ["card"]
    list_select_related = ["card"]
    ordering = ["card__name", "-effective_from"]
    fields = ["card", "effective_from", "published_at", "display_fee", "note"]
    readonly_fields = fields
    display_fee = credits_column("request_fee", "Credits per request")

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [RateInline] if obj is not None else []

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        last = RateCardVersion.objects.filter(card=initial.get("card")).order_by("-effective_from").first()
        if last is None:
            return initial
        rates = Rate.objects.filter(version=last, tier_min_context=0)
        filled: dict[str, Any] = {rate.usage_class: rate.rate for rate in rates}
        return {**filled, "request_fee": last.request_fee, **initial}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        given = form.cleaned_data
        made = cards.publish(
            given["card"].name,
            form.rates(),
            given["effective_from"],
            request_fee=given["request_fee"],
            note=given["note"],
        )
        take_over(obj, made)
