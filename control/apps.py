"""The control plane's app."""

from __future__ import annotations

from django.apps import AppConfig


class ControlConfig(AppConfig):
    """The Django app of pages and of the management API; its models are the other apps'."""

    name = "control"

    def ready(self) -> None:
        """Follow sign-ins: who fails, and whose address or factor changes."""
        from control.accounts import adapter, views

        views.connect()
        adapter.connect()
