"""Filters of the tenants' pages."""

from __future__ import annotations

from django import template

from base.units import format_credits
from control.console.pages import show_charge, show_credits

register = template.Library()
register.filter("credits", show_credits)
register.filter("charge", show_charge)
register.filter("exactly", format_credits)


@register.filter
def grouped(number: int) -> str:
    """Return a whole number with thousands separators."""
    return f"{number:,}"


@register.filter
def short(number: int) -> str:
    """Return a whole number short enough for an axis: 950, 1.2K, 40M."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return str(number)
