"""Waiting for what tells nobody that it has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LONGEST = 120.0  # seconds: no verdict, it only ends what hangs


async def until(is_so: Callable[[], object]) -> None:
    """Return once `is_so()` is true."""
    async with asyncio.timeout(LONGEST):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
