"""A connection's transport that gives a client which still sends the time to read its answer."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Lingering(Protocol):
    """A connection's protocol, as its transport needs it."""

    @property
    def is_being_sent_to(self) -> bool:
        """Whether the client still sends the body of the request at hand."""
        ...

    @property
    def is_lingering(self) -> bool:
        """Whether the connection is only kept for its client to read."""
        ...

    def linger(self) -> None:
        """Say that nothing more will be sent, and close soon: at once would be a reset, and the answer lost."""
        ...


class LingeringTransport:
    """A connection's transport, whose `close` lets a client that still sends read its answer first."""

    def __init__(self, transport: asyncio.Transport, protocol: Lingering) -> None:
        self._transport = transport
        self._protocol = protocol
        self.write = transport.write  # as fast as without us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._protocol.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if self._protocol.is_being_sent_to:
            self._protocol.linger()
        else:
            self._transport.close()
