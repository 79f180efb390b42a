"""The suite's own mend of asyncio: see `_accepted_by_closed_servers`."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest


@pytest.mark.parametrize("turns", range(5))
def test_what_is_accepted_while_its_server_closes_is_closed_too(turns):
    async def leave() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        socket.create_connection(server.sockets[0].getsockname()).close()
        for _ in range(turns):
            await asyncio.sleep(0)
        server.close()

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        asyncio.run(leave())
        gc.collect()
    assert [str(warning.message) for warning in left] == []
