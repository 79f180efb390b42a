"""Counts failed sign-ins in the metrics of the gateway that refused them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest

from gateway.http.request import metrics_of


def connect() -> None:
    """Connect the signal's receiver; call once per process."""
    user_login_failed.connect(_failed, dispatch_uid="accounts.sign_in_failed")


def _failed(request: HttpRequest | None = None, **_: Any) -> None:
    if (metrics := metrics_of(getattr(request, "scope", {}))) is not None:
        metrics.authentication_failed("password")
