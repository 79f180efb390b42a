"""The desk's app, which has no tables: it registers its reader with routing."""

from __future__ import annotations

from django.apps import AppConfig

from routing import hook


class DeskConfig(AppConfig):
    """Reads what chats ask for."""

    name = "desk"

    def ready(self) -> None:
        """Register the reader."""
        from desk.reader import EnglishReader

        hook.register(EnglishReader())
