"""Price lists and their versions, to look at: new prices are published on the operator's page of the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from base.units import format_credits
from billing.admin.base import ReadOnlyAdmin, RowsInline, credits_column, tool
from billing.models import Rate, RateCard, RateCardVersion
from billing.rating import CardPrices
from billing.selectors.prices import prices_at


@admin.register(RateCard)
class RateCardAdmin(ReadOnlyAdmin):
    """A named list of prices, with those in force now."""

    search_fields = ["name"]
    ordering = ["name"]
    fields = ["name"]
    row_tools = ["publish_new_version"]
    list_tools = ["new_list"]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; those of prices share one query per request."""
        return ["name", *_price_columns(prices_at(timezone.now()))]

    def has_publish_permission(self, request: HttpRequest, card: Any = None) -> bool:
        """Whether this operator may publish prices."""
        return request.user.has_perm("billing.add_ratecardversion")

    @tool("Publish new prices", path="publish", permission="publish")
    def publish_new_version(self, request: HttpRequest, card: RateCard) -> HttpResponse:
        """Lead to the operator's form of new prices, filled with the last ones."""
        return redirect("operate-price-new", card.name)

    @tool("New price list", path="new-list", permission="publish")
    def new_list(self, request: HttpRequest) -> HttpResponse:
        """Lead to the operator's form of a new list."""
        return redirect("operate-price-list-new")


def _price_columns(prices: Mapping[str, CardPrices]) -> list[Callable[[RateCard], str]]:
    def column(title: str, usage_class: str) -> Callable[[RateCard], str]:
        @admin.display(description=f"{title}, credits per million")
        def shown(card: RateCard) -> str:
            found = prices.get(card.name)
            return "no price in force" if found is None else format_credits(found.tiers[0].rates[usage_class])

        return shown

    return [column(title, name) for title, name in (("Input", "input"), ("Cached", "cache_read"), ("Output", "output"))]


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
        """Rates are published with their version."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A published rate stays as it is."""
        return False


LISTED = ("input", "cache_read", "output")


@admin.register(RateCardVersion)
class RateCardVersionAdmin(ReadOnlyAdmin):
    """Published prices."""

    list_display = [
        *("card", "effective_from", "display_input", "display_cache_read", "display_output"),
        *("display_fee", "display_batch", "note"),
    ]
    list_filter = ["card"]
    list_select_related = ["card"]
    ordering = ["card__name", "-effective_from"]
    fields = ["card", "effective_from", "published_at", "display_fee", "display_batch", "note"]
    readonly_fields = fields
    inlines = [RateInline]
    display_fee = credits_column("request_fee", "Per request")
    display_input = credits_column("rate_input", "Input", ordering=False)
    display_cache_read = credits_column("rate_cache_read", "Cached", ordering=False)
    display_output = credits_column("rate_output", "Output", ordering=False)

    @admin.display(description="Batches", ordering="batch_bp")
    def display_batch(self, version: RateCardVersion) -> str:
        """The share of the rates that batches pay."""
        return f"{version.batch_bp / 100:g} %"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RateCardVersion]:
        """Return the versions with the rates that the list shows."""
        rates = Rate.objects.filter(version=OuterRef("pk"), tier_min_context=0)
        found: QuerySet[RateCardVersion] = super().get_queryset(request)
        return found.annotate(
            **{f"rate_{name}": Subquery(rates.filter(usage_class=name).values("rate")) for name in LISTED}
        )
