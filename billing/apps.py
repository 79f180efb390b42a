"""The billing app."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class BillingConfig(AppConfig):
    """The Django app of credit."""

    name = "billing"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Install the triggers of append-only tables after each migrate."""
        from billing import triggers

        post_migrate.connect(triggers.install_after_migrate, sender=self, dispatch_uid="billing.triggers")
