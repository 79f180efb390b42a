"""One Sluice past one machine for all of this folder: PostgreSQL, Redis, two gateways, two workers (`topology.py`).

Tests make tenants of their own where they count, and leave all of it as well as they found it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.stack import Stack, assert_books_are_right
from tests.stack.topology import Topology, running_topology

VARIABLES = {"SLUICE_DRAIN_SECONDS": "3", "SLUICE_TRUST_PROXY": "true"}
MODELS = {
    "chat": {"step_seconds": 0.001},
    "word-chat": {"step_seconds": 0.003, "text": "word " * 2000},  # 6 s
    "long-chat": {"step_seconds": 0.02, "text": "word " * 8000},  # 160 s: it runs when a busy machine comes to it
    "drawn-chat": {"step_seconds": 0.02, "sampled": True},
}


@pytest.fixture(scope="package")
def cluster(postgres_server: str) -> Iterator[Topology]:
    with running_topology(postgres_server, VARIABLES, ("fake-chat", "drawn-chat"), **MODELS) as running:
        yield running
        assert_books_are_right(running.settled())
        assert running.stack.stop() == 0, running.said()[-8000:]


@pytest.fixture(scope="package")
def stack(cluster: Topology) -> Stack:
    """What of it `serve` runs."""
    return cluster.stack
