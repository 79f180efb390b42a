"""Filters and tags of both sides' pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import template

from base.units import format_credits
from control.screens import figures
from control.screens.shell import Entry, entries_of
from control.screens.tables import State, icon_of

register = template.Library()
register.filter("credits", figures.show_credits)
register.filter("charge", figures.show_charge)
register.filter("exactly", format_credits)
register.filter("amount", figures.amount)
register.filter("balance", lambda micro: figures.amount(micro, is_charge=False))
register.filter("grouped", figures.grouped)
register.filter("short", figures.short)
register.filter("moment", figures.moment)
register.filter("day", figures.day)
register.filter("duration", figures.duration)
register.filter("short_id", figures.short_id)
register.simple_tag(icon_of, name="icon")


@register.simple_tag
def state(word: str, tone: str = "") -> State:
    """Return a state's word with its icon and colour."""
    return State(word, tone)


@register.simple_tag(takes_context=True)
def navigation(context: Mapping[str, Any]) -> list[Entry]:
    """Return the pages of the side that the page is on, for who looks at it."""
    return entries_of(context)
