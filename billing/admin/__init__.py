"""The operator's admin of credit, by noun. Nothing here writes by itself: forms call the services."""

from billing.admin import cards, grants, prices, subscriptions, usage, wallets

__all__ = ["cards", "grants", "prices", "subscriptions", "usage", "wallets"]
