"""The billing app."""

from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Credits: unit, cards, plans, ledger, holds, limits."""

    name = "billing"
    default_auto_field = "django.db.models.BigAutoField"
