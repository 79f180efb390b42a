"""The endpoints over scripted generations."""

from __future__ import annotations

import pytest

from tests.gateway.edge.fakes import World

STARTERS = ("gateway.edge.chat", "gateway.edge.embeddings", "gateway.edge.responses", "gateway.consumers.responses")


@pytest.fixture
async def world(monkeypatch):
    """A gateway without database and engine."""
    import gateway.asgi  # noqa: F401 - the modules to patch

    world = World()
    for module in STARTERS:
        monkeypatch.setattr(f"{module}.start_generation", world.start)
    yield world
    await world.runtime.settled()


@pytest.fixture
def app(world):
    """The whole application, with the world's runtime as its state."""
    return world.application()
