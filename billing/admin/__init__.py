"""The operator's admin of credit, a module per table. Forms write through the services only."""

from billing.admin import grants, reconciliations, subscriptions, usage, wallets

__all__ = ["grants", "reconciliations", "subscriptions", "usage", "wallets"]
