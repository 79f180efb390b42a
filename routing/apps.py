"""The routing app."""

from __future__ import annotations

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    """The Django app of the model catalogue, its deployments and its routing rules."""

    name = "routing"
    verbose_name = "Models"  # as the admin calls the part of its tables
    default_auto_field = "django.db.models.BigAutoField"
