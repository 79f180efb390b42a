"""The endpoints over fake engines."""

from __future__ import annotations

import pytest

from tests.gateway.apis.world import make_world


@pytest.fixture
async def world():
    """A gateway without database and worker."""
    made = await make_world()
    yield made
    await made.settled()


@pytest.fixture
def app(world):
    """The whole application, with the world's runtime as its state."""
    return world.application()
