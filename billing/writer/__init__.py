"""The writer: reserve, extend, renew, settle and release, applied in groups by one decision for both databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from billing.writer.driver import driver_for
from billing.writer.errors import WriterBusyError, WriterClosedError, WriterError
from billing.writer.queue import Writer

__all__ = ["Writer", "WriterBusyError", "WriterClosedError", "WriterError", "open_writer"]


def open_writer(settings: Mapping[str, Any], *, roll: Callable[[UUID], None] | None = None) -> Writer:
    """Return a writer for a Django database configuration; it connects at its first flush.

    `roll(wallet)` is called in a thread when a wallet's grants changed by time; it posts what has expired.
    """
    return Writer(driver_for(settings), roll or roll_grants)


def roll_grants(wallet: UUID) -> None:
    """Post what has expired of the wallet's grants, on this thread's own connection, which is closed again."""
    from django.db import connections

    from billing.services import credits

    try:
        credits.roll(wallet)
    finally:
        connections.close_all()
