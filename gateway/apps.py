"""The gateway app."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class GatewayConfig(AppConfig):
    """Project and front door: tenancy, API keys, data plane, consoles."""

    name = "gateway"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Install the epoch's triggers after each migrate or flush, and register the system checks."""
        from gateway import checks  # noqa: F401 - checks registers itself
        from gateway.runtime import epoch_triggers

        post_migrate.connect(epoch_triggers.install_after_migrate, sender=self, dispatch_uid="gateway.epoch_triggers")
