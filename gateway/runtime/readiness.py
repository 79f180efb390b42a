"""Whether the database still guards what it must guard."""

from __future__ import annotations

from django.db import connection

from billing import triggers
from gateway.runtime import epoch_triggers


def missing_triggers() -> list[str]:
    """Return the names of the triggers that aren't there: append-only tables and the catalogue epoch rest on them."""
    return [*triggers.missing(connection), *epoch_triggers.missing()]
