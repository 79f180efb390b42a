"""The application, with a fake engine behind it."""

from __future__ import annotations

from tests.gateway.apis.conftest import app, world

__all__ = ["app", "world"]
