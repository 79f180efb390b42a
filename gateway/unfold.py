"""How the operator's admin looks: title, sidebar, dashboard (Unfold's own settings)."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy


def _item(title: str, icon: str, url: str) -> dict[str, Any]:
    """Return a sidebar link to a list, shown to those who may view it; the dashboard's to everybody."""
    item: dict[str, Any] = {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{url}")}
    if url != "index":
        app, model, _ = url.split("_")
        item["permission"] = lambda request: request.user.has_perm(f"{app}.view_{model}")
    return item


def _group(title: str, *items: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "separator": True, "items": list(items)}


# The console's colours (static/sluice.css): its accent, its dark theme's, its text, lines and grounds.
_GREYS = {
    "50": "#f7f7f8",
    "100": "#ecedf0",
    "200": "#dcdee3",
    "300": "#c6c9d0",
    "400": "#a2a8b4",
    "500": "#6b717d",
    "600": "#5a606c",
    "700": "#34373e",
    "800": "#2a2d33",
    "900": "#1f2125",
    "950": "#17181b",
}
_BLUES = {
    "50": "#f2f8fd",
    "100": "#e3eefa",
    "200": "#cde3fb",
    "300": "#a6cff8",
    "400": "#7db8f5",
    "500": "#4a93dd",
    "600": "#0b5cad",
    "700": "#094c8f",
    "800": "#0a3d72",
    "900": "#1d3045",
    "950": "#10151c",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Sluice",
    "SITE_HEADER": "Sluice",
    "SITE_SUBHEADER": "Inference gateway",
    "SITE_ICON": lambda _: static("sluice.svg"),
    "STYLES": [lambda _: static("admin.css")],
    "SITE_URL": "/",
    "COLORS": {"base": _GREYS, "primary": _BLUES},
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _: static("sluice.svg")}],
    "SHOW_BACK_BUTTON": True,
    "DASHBOARD_CALLBACK": "control.admin.dashboard.dashboard",
    "SIDEBAR": {
        "show_search": True,
        "navigation": [
            {"title": "", "items": [_item("Dashboard", "monitoring", "index")]},
            _group(
                "Tenants",
                _item("Tenants", "apartment", "gateway_tenant_changelist"),
                _item("Projects", "folder", "gateway_project_changelist"),
                _item("API keys", "key", "gateway_apikey_changelist"),
                _item("Members", "badge", "gateway_membership_changelist"),
                _item("Invitations", "mail", "gateway_invitation_changelist"),
                _item("Users", "person", "gateway_user_changelist"),
                _item("Batches", "stacks", "gateway_batch_changelist"),
                _item("Refusals", "block", "gateway_refusalcount_changelist"),
                _item("Outgoing mail", "outgoing_mail", "gateway_outgoingmail_changelist"),
                _item("Audit trail", "policy", "gateway_auditevent_changelist"),
            ),
            _group(
                "Credit",
                _item("Wallets", "account_balance_wallet", "billing_wallet_changelist"),
                _item("Ledger", "receipt_long", "billing_ledgertransfer_changelist"),
                _item("Grants", "redeem", "billing_creditgrant_changelist"),
                _item("Usage", "query_stats", "billing_usagerecord_changelist"),
                _item("Open holds", "lock_clock", "billing_hold_changelist"),
                _item("Subscriptions", "event_repeat", "billing_subscription_changelist"),
                _item("Plans", "sell", "billing_plan_changelist"),
                _item("Plan versions", "history", "billing_planversion_changelist"),
                _item("Rate cards", "price_change", "billing_ratecard_changelist"),
                _item("Prices", "payments", "billing_ratecardversion_changelist"),
                _item("Reconciliations", "fact_check", "billing_reconciliation_changelist"),
            ),
            _group(
                "Models",
                _item("Public models", "smart_toy", "routing_publicmodel_changelist"),
                _item("Aliases", "label", "routing_modelalias_changelist"),
                _item("Deployments", "dns", "routing_deployment_changelist"),
                _item("Nodes", "computer", "routing_node_changelist"),
                _item("Rules", "alt_route", "routing_routerule_changelist"),
            ),
        ],
    },
}
