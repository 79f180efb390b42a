"""The threads on which the data plane's few ORM reads run, away from the event loop and from Django's own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


class DatabaseThreads:
    """A small pool of threads; a call gives its connection back (or closes it) before it returns."""

    def __init__(self, size: int = 4) -> None:
        self._executor = ThreadPoolExecutor(max_workers=size, thread_name_prefix="gateway-database")

    async def run(self, function: Callable[[], T]) -> T:
        """Return `function()`, called on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _with_connections_closed, function)

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._executor.shutdown(wait=True)


def _with_connections_closed(function: Callable[[], T]) -> T:
    try:
        return function()
    finally:
        connections.close_all()
