"""Rate cards, with the prices in force; a change of prices is a new version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from base.units import format_credits
from billing.admin.base import RowsAdmin, tool
from billing.models import RateCard
from billing.rating import CardPrices
from billing.selectors.prices import prices_at


@admin.register(RateCard)
class RateCardAdmin(RowsAdmin):
    """A named list of prices, with those in force now."""

    search_fields = ["name"]
    ordering = ["name"]
    row_tools = ["publish_new_version"]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; those of prices share one query per request."""
        return ["name", *_price_columns(prices_at(timezone.now()))]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["name"] if obj is not None else []

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_publish_permission(self, request: HttpRequest, card: Any = None) -> bool:
        """Whether this operator may publish prices."""
        return request.user.has_perm("billing.add_ratecardversion")

    @tool("Publish new prices", path="publish", permission="publish")
    def publish_new_version(self, request: HttpRequest, card: RateCard) -> HttpResponse:
        """Open the form of new prices, filled with the last ones."""
        return HttpResponseRedirect(f"{reverse('admin:billing_ratecardversion_add')}?card={card.pk}")


def _price_columns(prices: Mapping[str, CardPrices]) -> list[Callable[[RateCard], str]]:
    def column(title: str, usage_class: str) -> Callable[[RateCard], str]:
        @admin.display(description=f"{title}, credits per million")
        def shown(card: RateCard) -> str:
            found = prices.get(card.name)
            return "no price in force" if found is None else format_credits(found.tiers[0].rates[usage_class])

        return shown

    return [column(title, name) for title, name in (("Input", "input"), ("Cached", "cache_read"), ("Output", "output"))]
