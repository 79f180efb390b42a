"""How a session handles its worker's messages, without a worker."""

from __future__ import annotations

import pytest

from inference.clients.session import EventStream, WorkerSession
from inference.errors import EngineError
from inference.protocol import Batch, Cancel, Ready, WireDelta
from inference.types import Delta, Usage


async def test_an_impossible_usage_ends_its_own_request_alone(tmp_path, monkeypatch):
    """They reached the gateway's checkpoints, and every tenant's leases stopped being renewed."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    sent = []
    monkeypatch.setattr(session._link, "send", sent.append)
    session._receive(Ready("w", {}))
    bad, good = EventStream(), EventStream()
    session.submit("a", bad, 5, True)
    session.submit("b", good, 5, True)
    session._receive(Batch([WireDelta("a", "t", 1, 0, -5, 0), WireDelta("b", "t", 1, 0, 1, 0)]))
    with pytest.raises(EngineError, match="counted what can't be"):
        await bad.get()
    assert await good.get() == Delta("t", Usage(1, output=1))
    assert sent[2:] == [Cancel("a")]
    assert list(session._streams) == ["b"]
    session.close()
