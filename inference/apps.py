"""The inference app: only its management commands need Django."""

from __future__ import annotations

from django.apps import AppConfig


class InferenceConfig(AppConfig):
    """The engine; no models of its own."""

    name = "inference"
