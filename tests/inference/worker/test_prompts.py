"""Long requests are prepared beside the reader thread, which goes on answering."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, cast

import pytest

from inference.errors import EngineError, OverloadedError
from inference.protocol import Prepare, Renew
from inference.types import GenerationRequest
from inference.worker import prompts
from inference.worker.deployment import Prompt, ServedEngine
from inference.worker.process import Outbox
from inference.worker.prompts import LONG_BYTES, LongPrepared, LongRequest, LongRequests
from inference.worker.session import Session
from inference.worker.sessions import Reader
from tests.inference.engine_contract import chat

WAIT = 10.0


class Engine:
    """Prepares a request that says "stuck" only when it is let go."""

    deployment = "d"
    draining = False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Event()
        self.apart: list[bool] = []

    def prepare(self, request: GenerationRequest, *, apart: bool = False) -> Prompt:
        self.apart.append(apart)
        text = request.messages[-1].content
        if text.startswith("broken"):
            raise ZeroDivisionError
        if text.startswith("stuck"):
            self.began.set()
            assert self.go.wait(WAIT)
        return Prompt(request, 7, ids=(1, 2, 3))


class Router:
    """Counts what is sent."""

    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        self.frames.append(frames)


class Wake:
    """A socket to oneself."""

    def __init__(self) -> None:
        self.came: SimpleQueue[bytes] = SimpleQueue()

    def send(self, frame: bytes) -> None:
        self.came.put(frame)


class Served:
    """A reader with one session, without sockets."""

    def __init__(self) -> None:
        self.engine, self.router, self.wake = Engine(), Router(), Wake()
        self.outbox = Outbox(self.wake)
        self.long = LongRequests(self.outbox.prepared)
        loop: Any = type("Loop", (), {"steps": 0, "health": {}})()
        self.reader = Reader(
            router=self.router,
            wake=None,
            incarnation="i",
            record=cast("Any", None),
            registry={},
            inbox=SimpleQueue(),
            loop=loop,
            tell=self.outbox.send,
            long=self.long,
            session_seconds=5.0,
            session_bytes=1 << 20,
            prepared_seconds=30.0,
        )
        self.reader.engines["d"] = cast("ServedEngine", self.engine)
        self.session = Session(b"gateway", 0.0)
        self.reader._sessions[b"gateway"] = self.session

    def ask(self, text: str, call: int = 1) -> None:
        request = chat(text)
        self.reader._obey(self.session, Prepare(call, "d", request), len(text))

    def prepared(self) -> None:
        """Hand one long request's end to the reader, as its run does."""
        result = self.outbox.queue.get(timeout=WAIT)
        assert isinstance(result, LongPrepared)
        self.reader._keep_long(result)


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.engine.go.set()
    served.long.close(WAIT)


def test_a_long_request_keeps_nobody_waiting(served: Served) -> None:
    served.ask("stuck" * LONG_BYTES)
    assert served.engine.began.wait(WAIT)
    served.reader._obey(served.session, Renew(0), 1)
    served.ask("short", call=2)
    assert len(served.router.frames) == 2
    assert len(served.session.kept) == 1
    served.engine.go.set()
    served.prepared()
    assert len(served.router.frames) == 3
    assert len(served.session.kept) == 2
    assert served.engine.apart == [True, False]


def test_a_long_request_that_fails_is_refused_and_the_next_is_prepared(served: Served) -> None:
    served.ask("broken" * LONG_BYTES)
    served.prepared()
    assert b"prepare_failed" in served.router.frames[-1][-1]
    served.ask("whole" * LONG_BYTES)
    served.prepared()
    assert len(served.session.kept) == 1


def test_a_session_that_has_left_is_not_answered(served: Served) -> None:
    served.ask("whole" * LONG_BYTES)
    result = served.outbox.queue.get(timeout=WAIT)
    del served.reader._sessions[b"gateway"]
    served.reader._keep_long(result)
    assert served.router.frames == []


def test_no_tenant_waits_behind_many_of_another(served: Served) -> None:
    served.ask("stuck" * LONG_BYTES)
    for _ in range(prompts.MOST_PER_TENANT - 1):
        served.ask("stuck" * LONG_BYTES)
    served.ask("stuck" * LONG_BYTES)
    assert b"too many long" in served.router.frames[-1][-1]


def test_what_waited_too_long_is_not_begun() -> None:
    done: SimpleQueue[LongPrepared] = SimpleQueue()
    engine = Engine()
    requests = LongRequests(done.put, clock=lambda: 100.0)
    message = Prepare(1, "d", chat("whole"))
    requests.put(LongRequest(b"s", message, cast("ServedEngine", engine), 1, 100.0 - prompts.WAITING_SECONDS - 1))
    outcome = done.get(timeout=WAIT).outcome
    assert isinstance(outcome, EngineError)
    assert isinstance(outcome, OverloadedError)
    assert engine.apart == []
    requests.close(WAIT)
