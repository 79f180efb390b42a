"""System checks that refuse a production which cannot be right, each saying what to set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register


@register(Tags.security)
def check_environment(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Report an unknown SLUICE_ENV, and what production may not have."""
    if settings.SLUICE_ENV not in ("development", "production", "test"):
        hint = "Set SLUICE_ENV to development or production."
        return [Error(f"SLUICE_ENV is {settings.SLUICE_ENV!r}.", hint=hint, id="sluice.E001")]
    return _production() if settings.SLUICE_ENV == "production" else []


def _production() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.DEBUG:
        found.append(Error("DEBUG is on in production.", hint="Unset SLUICE_DEBUG.", id="sluice.E002"))
    if settings.SLUICE_SECRET_IS_GENERATED:
        hint = (
            "Set SLUICE_SECRET_KEY to 50 random characters and keep it: API keys are recognised with it. "
            f"To go on with the one in use, take it from {settings.SLUICE_HOME / 'secret.key'}."
        )
        found.append(Error("The secret key was generated at first start.", hint=hint, id="sluice.E003"))
    if (settings.SLUICE_HOME / "demo.json").exists():
        hint = f"Revoke the demo key, then delete {settings.SLUICE_HOME / 'demo.json'}."
        found.append(Error("Demo credentials are present.", hint=hint, id="sluice.E004"))
    if settings.SLUICE_BASE_URL.startswith("http://127.0.0.1"):
        hint = "Set SLUICE_BASE_URL to the address that people use, such as https://sluice.example.com."
        found.append(checks.Warning("Links point to this machine.", hint=hint, id="sluice.W001"))
    if settings.SLUICE_EMBEDDED:
        hint = "Set DATABASE_URL=postgresql://… unless one process on one machine is all you want."
        found.append(checks.Warning("The ledger is on SQLite.", hint=hint, id="sluice.W002"))
    return found
