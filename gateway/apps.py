"""The gateway app."""

from __future__ import annotations

from django.apps import AppConfig


class GatewayConfig(AppConfig):
    """Project and front door: tenancy, API keys, data plane, consoles."""

    name = "gateway"
    default_auto_field = "django.db.models.BigAutoField"
