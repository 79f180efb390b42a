"""The writer: reserve, extend, renew, settle, release, true up and expire, applied in groups by one rule set for both
databases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from billing.writer.driver import driver_for
from billing.writer.entry import WriterBusyError, WriterClosedError, WriterError
from billing.writer.queue import Writer

__all__ = ["Writer", "WriterBusyError", "WriterClosedError", "WriterError", "open_writer"]


def open_writer(settings: Mapping[str, Any]) -> Writer:
    """Return a writer for a Django database configuration; it connects at its first flush."""
    return Writer(driver_for(settings))
