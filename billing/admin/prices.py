"""Prices: the versions of rate cards. "Add" publishes new ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from base.units import format_credits, parse_credits
from billing.admin.base import CreditsField, RowsInline, ServiceAdmin, ServiceForm, credits_column, named_in, take_over
from billing.models import Rate, RateCardVersion
from billing.rating import CLASSES, CardPrices, own_rates
from billing.selectors.prices import prices_at
from billing.services import cards
from billing.services.errors import CardError


class RateInline(RowsInline):
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


LISTED = ("input", "cache_read", "output")
_TIER = re.compile(r"(\d+)\s*:\s*(.+)")
_HELP = "Credits per million tokens."


def _line(start: int, rates: Mapping[str, int]) -> str:
    """Return a tier as `_TIER` reads it."""
    return f"{start}: " + ", ".join(f"{name} {format_credits(rate)}" for name, rate in rates.items())


class PublishPricesForm(ServiceForm):
    """Rates by class, and other rates for long contexts if given."""

    input = CreditsField(help_text=_HELP)
    cache_read = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    cache_write_short = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    cache_write_long = CreditsField(required=False, help_text=f"{_HELP} Empty: as input.")
    output = CreditsField(help_text=_HELP)
    reasoning = CreditsField(required=False, help_text=f"{_HELP} Empty: as output.")
    tiers = forms.CharField(
        required=False,
        widget=forms.Textarea,
        help_text="Other rates from a context length on, one line each, as: 32000: input 20, output 80",
    )
    request_fee = CreditsField(initial=0, help_text="Credits per request that ran.")
    batch_percent = forms.DecimalField(
        min_value=0,
        max_value=100,
        decimal_places=2,
        initial=cards.DEFAULT_BATCH_BP / 100,
        required=False,
        help_text="What requests of batches cost of these rates, in per cent. Empty: half.",
    )

    class Meta:
        model = RateCardVersion
        fields = ["card", "effective_from", "note"]

    field_order = ["card", "effective_from", *CLASSES, "tiers", "request_fee", "batch_percent", "note"]

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
        """Return all rates as typed: least context → class → µcr per million tokens."""
        base = {name: self.cleaned_data[name] for name in CLASSES if self.cleaned_data[name] is not None}
        return {**self.cleaned_data["tiers"], 0: base}

    def batch_bp(self) -> int:
        """Return what requests of batches cost of the rates, in basis points."""
        percent = self.cleaned_data["batch_percent"]
        return cards.DEFAULT_BATCH_BP if percent is None else int(percent * 100)


@dataclass(frozen=True, slots=True)
class PriceChange:
    """The price of one class before and after: credits per million tokens, "–" where it has no rate."""

    context: int
    usage_class: str
    before: str
    after: str
    difference: str


def price_changes(before: CardPrices | None, after: CardPrices) -> list[PriceChange]:
    """Return the change of every class in every tier of either, by tier and class."""
    old, new = ({tier.min_context: tier.rates for tier in prices.tiers} if prices else {} for prices in (before, after))
    return [
        PriceChange(start, name, _amount(was), _amount(will), _difference(was, will))
        for start in sorted(old | new)
        for name in CLASSES
        for was, will in [(old.get(start, {}).get(name), new.get(start, {}).get(name))]
    ]


def _amount(rate: int | None) -> str:
    return "–" if rate is None else format_credits(rate)


def _difference(was: int | None, will: int | None) -> str:
    if was is None or will is None:
        return "new" if was is None else "gone"
    if was == will:
        return ""
    return f"{(will - was) / was:+.1%}" if was else f"+{format_credits(will)}"


@admin.register(RateCardVersion)
class RateCardVersionAdmin(ServiceAdmin):
    """Published prices; "add" publishes new ones, after a page that compares them with those in force."""

    add_form = PublishPricesForm
    list_display = [
        "card",
        "effective_from",
        *(f"display_{name}" for name in LISTED),
        "display_fee",
        "display_batch",
        "note",
    ]
    list_filter = ["card"]
    list_select_related = ["card"]
    ordering = ["card__name", "-effective_from"]
    fields = ["card", "effective_from", "published_at", "display_fee", "display_batch", "note"]
    readonly_fields = fields
    display_fee = credits_column("request_fee", "Per request")
    display_input = credits_column("rate_input", "Input", ordering=False)
    display_cache_read = credits_column("rate_cache_read", "Cached", ordering=False)
    display_output = credits_column("rate_output", "Output", ordering=False)

    @admin.display(description="Batches", ordering="batch_bp")
    def display_batch(self, version: RateCardVersion) -> str:
        """The share of the rates that batches pay."""
        return f"{version.batch_bp / 100:g} %"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RateCardVersion]:
        rates = Rate.objects.filter(version=OuterRef("pk"), tier_min_context=0)
        found: QuerySet[RateCardVersion] = super().get_queryset(request)
        return found.annotate(
            **{f"rate_{name}": Subquery(rates.filter(usage_class=name).values("rate")) for name in LISTED}
        )

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        return [RateInline] if obj is not None else []

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Fill in the last prices as they would be typed: a class that costs what its parent costs is left empty."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        last = RateCardVersion.objects.filter(card=named_in(initial, "card")).order_by("-effective_from").first()
        if last is None:
            return initial
        tiers: dict[int, dict[str, int]] = defaultdict(dict)
        for rate in Rate.objects.filter(version=last).order_by("tier_min_context"):
            tiers[rate.tier_min_context][rate.usage_class] = rate.rate
        typed = {start: own_rates(rates) for start, rates in tiers.items()}
        first = typed.pop(0)
        return {
            **first,
            "tiers": "\n".join(starmap(_line, typed.items())),
            "request_fee": last.request_fee,
            "batch_percent": last.batch_bp / 100,
            **initial,
        }

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        if request.method == "POST" and "_publish" not in request.POST and self.has_add_permission(request):
            if "_edit" in request.POST:
                unpublished = ValidationError("Nothing is published yet.")
                return self.refused(request, unpublished, None, form_url, extra_context)
            form = self.get_form(request)(request.POST, request.FILES)
            if form.is_valid():
                return self._compared(request, form)
        answer: HttpResponse = super().add_view(request, form_url, extra_context)
        return answer

    def _compared(self, request: HttpRequest, form: PublishPricesForm) -> HttpResponse:
        """Show what would change, or the form again with the reason if the prices are invalid."""
        given = form.cleaned_data
        moment = given["effective_from"] or timezone.now()
        try:
            after = cards.resolved(form.rates(), given["request_fee"], form.batch_bp())
        except CardError as refused:
            return self.refused(request, refused)
        before = prices_at(moment).get(given["card"].name)
        context = {
            **self.admin_site.each_context(request),
            "title": f"New prices of {given['card']}",
            "opts": self.opts,
            "card": given["card"],
            "effective_from": given["effective_from"],
            "changes": price_changes(before, after),
            "fee_before": None if before is None else format_credits(before.request_fee),
            "fee_after": format_credits(after.request_fee),
            "batch_before": None if before is None else before.batch_bp / 100,
            "batch_after": after.batch_bp / 100,
            "sent": [(name, value) for name, values in request.POST.lists() for value in values],
        }
        return TemplateResponse(request, "admin/billing/compare_prices.html", context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        given = form.cleaned_data
        made = cards.publish(
            given["card"].name,
            form.rates(),
            given["effective_from"],
            request_fee=given["request_fee"],
            batch_bp=form.batch_bp(),
            note=given["note"],
        )
        take_over(obj, made)
