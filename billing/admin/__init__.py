"""The operator's admin of credit, a module per table. Forms write through the services only."""

from billing.admin import cards, grants, prices, reconciliations, subscriptions, usage, wallets

__all__ = ["cards", "grants", "prices", "reconciliations", "subscriptions", "usage", "wallets"]
