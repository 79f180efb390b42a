"""The billing app."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


class BillingConfig(AppConfig):
    """The Django app of credit."""

    name = "billing"
    verbose_name = "Credit"  # as the admin calls the part of its tables
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Take the triggers of append-only tables away for each migrate, and install them after it."""
        from billing import triggers

        pre_migrate.connect(triggers.drop_before_migrate, sender=self, dispatch_uid="billing.drop_triggers")
        post_migrate.connect(triggers.install_after_migrate, sender=self, dispatch_uid="billing.triggers")
