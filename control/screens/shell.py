"""The pages of both sides in their order, as the navigation shows them and Ctrl+K finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse


@dataclass(frozen=True, slots=True)
class Entry:
    """A page: the name that its view gives as `page`, its title, its URL's name, and who sees it.

    `needs` is a capability of a tenant's role (tenancy.services.access) or an operator's permission. The first four
    that somebody sees stand at the foot of a phone, the rest behind “More”.
    """

    page: str
    title: str
    url: str
    icon: str
    needs: str = ""
    address: str = ""
    is_first: bool = False


TENANT = (
    Entry("home", "Home", "console-home", "home"),
    Entry("chat", "Chat", "console-chat", "chat", "chat"),
    Entry("requests", "Requests", "console-requests", "list"),
    Entry("usage", "Usage", "console-usage", "chart"),
    Entry("keys", "Keys", "console-keys", "key"),
    Entry("models", "Models", "console-models", "cube"),
    Entry("batches", "Batches", "console-batches", "stack"),
    Entry("billing", "Billing", "console-billing", "card", "wallet"),
    Entry("people", "People", "console-people", "people"),
    Entry("settings", "Settings", "console-settings", "sliders", "settings"),
    Entry("audit", "Audit", "console-audit", "clock", "audit"),
    Entry("docs", "Docs", "docs", "book"),
)
OPERATOR = (
    Entry("now", "Now", "operate-now", "pulse"),
    Entry("requests", "Requests", "operate-requests", "list", "billing.view_usagerecord"),
    Entry("tenants", "Tenants", "operate-tenants", "building", "gateway.view_tenant"),
    Entry("engines", "Engines", "operate-engines", "engine", "routing.view_deployment"),
    Entry("money", "Money", "operate-money", "card", "billing.view_usagerecord"),
    Entry("models", "Models", "operate-models", "cube", "routing.view_publicmodel"),
    Entry("routing", "Routing", "operate-routing", "route", "routing.view_routerule"),
    Entry("prices", "Prices", "operate-prices", "tag", "billing.view_ratecard"),
    Entry("plans", "Plans", "operate-plans", "stack", "billing.view_plan"),
    Entry("people", "People", "operate-people", "people", "gateway.view_user"),
    Entry("audit", "Audit", "operate-audit", "clock", "gateway.view_auditevent"),
    Entry("system", "System", "operate-system", "sliders", "routing.view_deployment"),
    Entry("docs", "Docs", "docs", "book"),
)
_AT_THE_FOOT = 4


def entries_of(context: Mapping[str, Any]) -> list[Entry]:
    """Return the pages that who looks may see: the operator's with `desk` in the context, the tenant's with `place`."""
    if (desk := context.get("desk")) is not None:
        return _addressed([one for one in OPERATOR if not one.needs or desk.may(one.needs)], "")
    if (place := context.get("place")) is not None:
        return _addressed([one for one in TENANT if not one.needs or place.access.may(one.needs)], place.query)
    return []


def _addressed(entries: Sequence[Entry], query: str) -> list[Entry]:
    found: list[Entry] = []
    for one in entries:
        is_first = len(found) < _AT_THE_FOOT
        found.append(replace(one, address=reverse(one.url) + query, is_first=is_first))
    return found
