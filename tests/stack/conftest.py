"""What the folders of stacks share: the server on which those with PostgreSQL have their databases."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.services.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL server: the run's, or one that ends with the session."""
    if url := os.environ.get("SLUICE_TEST_POSTGRES"):
        yield url
        return
    server = PostgresServer.start()
    yield server.url
    server.stop()
