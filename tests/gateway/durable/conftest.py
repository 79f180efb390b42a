"""The whole application over a real runtime: answers are kept in the test's database."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from tests.gateway.apis.client import Exchange
from tests.gateway.apis.server import with_runtime
from tests.gateway.world import engine_of, in_database, make_world, opened


class Bench:
    """One gateway of one tenant."""

    def __init__(self, runtime, world):
        self.runtime = runtime
        self.world = world
        self.app = with_runtime(runtime)

    def ask(self, body, *, key="k1", path="/v1/chat/completions", after=None, secret="", **headers) -> Exchange:
        """Begin to ask, under a key."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["idempotency-key"] = key
        if after is not None:
            named["last-event-id"] = str(after)
        return Exchange(self.app, "POST", path, body=body, headers=named, key=secret or self.world.secret)

    @property
    def engine(self):
        return engine_of(self.runtime, self.world)


@pytest.fixture
def gateway(tmp_path):
    """Open a gateway whose fake engine has these options."""

    @asynccontextmanager
    async def opened_gateway(terms=None, world=None, **options):
        world = world or await in_database(make_world, terms=terms, **options)
        async with opened(tmp_path) as runtime:
            yield Bench(runtime, world)

    return opened_gateway


def chat(text="hello", *, stream=False, **fields):
    """The body of a chat."""
    return {"model": "fake", "messages": [{"role": "user", "content": text}], "stream": stream, **fields}
