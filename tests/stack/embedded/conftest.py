"""One embedded Sluice, on SQLite, for all of this folder. Tests leave it as well as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.stack import Stack, assert_books_are_right, running_stack

MODELS = {
    "chat": {"step_seconds": 0.001},
    "long-chat": {"step_seconds": 0.01, "text": "word " * 2000},  # 20 s
}


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    with running_stack({"SLUICE_HEAD_SECONDS": "2"}, **MODELS) as running:
        yield running
        assert_books_are_right(running.audit())
        assert running.stop() == 0, "".join(running.said[-40:])
        assert [line for line in running.said if "Traceback" in line] == []
