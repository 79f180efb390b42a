"""The few reads that endpoints make through the ORM, on a thread and a connection of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from asgiref.sync import ThreadSensitiveContext
from channels.db import database_sync_to_async

T = TypeVar("T")


async def in_database(function: Callable[[], T]) -> T:
    """Return `function()`, run on a thread whose connection is given back afterwards."""
    async with ThreadSensitiveContext():
        result: T = await database_sync_to_async(function)()
        return result
