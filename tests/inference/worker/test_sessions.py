"""The reader thread over real sockets: which sessions expire, and which it refuses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from inference.errors import InvalidRequestError
from inference.protocol import (
    VERSION,
    Batch,
    Drained,
    Extend,
    Fatal,
    Hello,
    Prepare,
    PreparedReply,
    Ready,
    Refused,
    Renew,
    Stats,
    WireDelta,
    client_inbound,
    encode,
    numbered,
)
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, Health
from inference.worker.budget import PreparationBudget
from inference.worker.process import Outbox
from inference.worker.prompts import Queues
from inference.worker.serving import Serving
from inference.worker.session import Session
from inference.worker.sessions import Reader


@contextmanager
def reading(clock: Callable[[], float] = lambda: 0.0) -> Iterator[tuple[Reader, Any, Callable[[], None]]]:
    """Yield a reader over real sockets, a gateway's socket, and what starts the reader's thread."""
    context = zmq.Context()
    router, gateway = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    wake_in, wake_out = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    try:
        router.bind("inproc://router")
        gateway.setsockopt(zmq.IDENTITY, b"gateway")
        gateway.setsockopt(zmq.RCVTIMEO, 10_000)
        gateway.connect("inproc://router")
        wake_out.bind("inproc://wake-test")
        wake_in.connect("inproc://wake-test")
        outbox = Outbox(wake_in)
        budget = PreparationBudget()
        queues = Queues.opened(outbox.prepared, budget)
        loop: Any = type("Loop", (), {"steps": 0, "health": {}, "busy_since": None})()
        reader = Reader(
            router=router,
            wake=wake_out,
            incarnation="i",
            record=cast("Any", None),
            registry={},
            inbox=SimpleQueue(),
            serving=Serving(loop, step_seconds=30.0),
            enqueue=outbox.send,
            queues=queues,
            budget=budget,
            session_seconds=5.0,
            session_bytes=1 << 20,
            prepared_seconds=30.0,
            clock=clock,
        )
        thread = threading.Thread(target=reader.run, args=(outbox.queue,))
        try:
            yield reader, gateway, thread.start
        finally:
            outbox.finish()
            thread.join(10)
            queues.close()
    finally:
        context.destroy(linger=0)


def test_no_session_expires_while_its_frames_wait_to_be_read() -> None:
    with reading(clock=lambda: 10.0) as (reader, gateway, start):  # twice as long as a session may be silent
        reader._sessions[b"gateway"] = Session(b"gateway", 0.0)
        # The renewal stands behind more frames than are read in one go.
        messages = [*(Extend("unknown", 1, False) for _ in range(150)), Renew(0)]
        for number, message in enumerate(messages, 1):
            gateway.send_multipart([numbered(number), encode(message)])
        start()
        assert isinstance(client_inbound().read(gateway.recv_multipart()), Stats)


def test_between_two_short_prompts_the_reader_sends_and_reads_what_has_come() -> None:
    """Sixteen requests at once: the first is submitted while the others still wait to be prepared."""
    with reading() as (reader, gateway, start):
        reader._sessions[b"gateway"] = Session(b"gateway", 0.0)

        def prepare(request: GenerationRequest, **_: object) -> Prompt:
            reader._enqueue(b"gateway", Drained(int(request.id)))  # as a step ends meanwhile
            return Prompt(request, 8, ids=(1, 2, 3))

        deployment = SimpleNamespace(
            prepare=prepare,
            draining=False,
            grammars=None,
            adapter_in_memory=lambda _: "",
            adapters_in_memory=lambda: (),
        )
        reader._serving.deployments["d"] = cast("Any", deployment)
        calls = [Prepare(call, "d", GenerationRequest(str(call), "a", "a")) for call in (1, 2, 3)]
        for number, message in enumerate([*calls, Renew(0)], 1):
            gateway.send_multipart([numbered(number), encode(message)])
        start()
        inbound = client_inbound()
        answers = [inbound.read(gateway.recv_multipart()) for _ in range(7)]
        assert isinstance(answers[0], Stats), "what was sent behind the prompts is answered first"
        assert answers[1:] == [answer for call in (1, 2, 3) for answer in (PreparedReply(call, 3, 8), Drained(call))]


def test_frames_that_take_long_are_read_a_few_at_a_time() -> None:
    now = 0.0
    with reading(clock=lambda: now) as (reader, gateway, start):
        reader._sessions[b"gateway"] = Session(b"gateway", 0.0)

        def adapter_in_memory(request: GenerationRequest) -> str:
            nonlocal now
            now += 0.03
            reader._enqueue(b"gateway", Drained(int(request.id)))  # as a step ends meanwhile
            raise InvalidRequestError("not here")

        deployment = SimpleNamespace(draining=False, adapter_in_memory=adapter_in_memory, adapters_in_memory=lambda: ())
        reader._serving.deployments["d"] = cast("Any", deployment)
        for call in (1, 2, 3, 4):
            message = Prepare(call, "d", GenerationRequest(str(call), "a", "a"))
            gateway.send_multipart([numbered(call), encode(message)])
        start()
        inbound = client_inbound()
        answers = [inbound.read(gateway.recv_multipart()) for _ in range(8)]
        kinds = [Refused, Refused, Drained, Drained] * 2
        assert [(type(each), each.call) for each in answers] == list(zip(kinds, (1, 2, 1, 2, 3, 4, 3, 4), strict=True))


def test_a_message_with_half_a_character_ends_nobodys_session() -> None:
    with reading() as (reader, gateway, start):
        reader._sessions[b"gateway"] = Session(b"gateway", 0.0)
        reader._serving.unready["d"] = Health(ready=False, detail="\ud800")
        reader._enqueue(b"gateway", Batch([WireDelta("r", "\ud800", 1, 0, 1, 0)]))
        gateway.send_multipart([numbered(1), encode(Renew(0))])
        start()
        inbound = client_inbound()
        assert inbound.read(gateway.recv_multipart()) == Batch([WireDelta("r", "\ufffd", 1, 0, 1, 0)])
        assert inbound.read(gateway.recv_multipart()).health["d"].detail == "\ufffd"


def test_a_gateway_of_another_version_is_told_both_versions() -> None:
    with reading() as (_, gateway, start):
        start()
        gateway.send_multipart([numbered(1), encode(Hello(version=VERSION - 1))])
        answer = client_inbound().read(gateway.recv_multipart())
        assert answer == Fatal("i", f"the gateway speaks version {VERSION - 1}, this worker {VERSION}")
        gateway.send_multipart([numbered(1), encode(Hello())])
        assert isinstance(client_inbound().read(gateway.recv_multipart()), Ready)


def test_the_reader_is_busy_since_its_iteration_began_and_not_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the heartbeat judges a hung reader by."""
    waits: list[float | None] = []
    seconds = itertools.count()

    class Poller:
        def register(self, socket: object, events: int) -> None:
            """Nothing ever comes."""

        def poll(self, timeout: int) -> list[Any]:
            waits.append(reader.busy_since)
            reader._stopped = len(waits) == 3
            return []

    monkeypatch.setattr(zmq, "Poller", Poller)
    loop: Any = type("Loop", (), {"steps": 0, "health": {}, "busy_since": None})()
    reader = Reader(
        router=None,
        wake=None,
        incarnation="i",
        record=cast("Any", None),
        registry={},
        inbox=SimpleQueue(),
        serving=Serving(loop, step_seconds=30.0),
        enqueue=cast("Any", None),
        queues=cast("Any", None),
        budget=PreparationBudget(),
        session_seconds=5.0,
        session_bytes=1 << 20,
        prepared_seconds=30.0,
        clock=lambda: float(next(seconds)),
    )
    began: list[float | None] = []
    monkeypatch.setattr(reader, "_expire", lambda: began.append(reader.busy_since))
    reader.run(SimpleQueue())
    assert waits == [None, None, None]
    assert began == [0.0, 1.0, 2.0]
