"""The routing app."""

from __future__ import annotations

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    """Model catalogue, deployments, rules; from a request to the deployment that serves it."""

    name = "routing"
    default_auto_field = "django.db.models.BigAutoField"
