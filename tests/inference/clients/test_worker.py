"""How a session handles its worker's messages, without a worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace

import pytest
import zmq

from inference.clients.link import FRAMES_A_TURN
from inference.clients.session import EventStream, WorkerSession
from inference.clients.worker import WorkerEngine
from inference.config import WorkerConfig
from inference.errors import EngineError, OverloadedError, UnreachableError
from inference.protocol import (
    MAX_ANSWER_BYTES,
    Batch,
    Cancel,
    Hello,
    Prepare,
    Ready,
    Renew,
    Stats,
    UsageOf,
    WireDelta,
    WireFinished,
    encode,
    numbered,
)
from inference.types import Delta, Finished, FinishReason, GenerationRequest, Health, Kind, Usage


async def test_an_impossible_usage_ends_its_own_request_alone(tmp_path, monkeypatch):
    """They reached the gateway's checkpoints, and every tenant's leases stopped being renewed."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    sent = []
    monkeypatch.setattr(session._link, "send", sent.append)
    session._receive(Ready("w", {}))
    bad, good = EventStream(5), EventStream(5)
    session.submit("a", bad, 5, True)
    session.submit("b", good, 5, True)
    session._receive(Batch([WireDelta("a", "t", 1, 0, -5, 0), WireDelta("b", "t", 1, 0, 1, 0)]))
    with pytest.raises(EngineError, match="counted what can't be"):
        await bad.get()
    assert await good.get() == Delta("t", Usage(1, output=1))
    assert sent[2:] == [Cancel("a")]
    assert list(session._streams) == ["b"]
    session.close()


@pytest.mark.parametrize("usage", [Usage(4, 2), Usage(5, 0, 4), Usage(5, 0, 3, 1), Usage(2**30, output=2**30)])
async def test_no_worker_counts_more_than_a_request_was_given(tmp_path, monkeypatch, usage):
    """One in other hands than ours emptied every wallet whose requests it served, far below zero."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    sent = []
    monkeypatch.setattr(session._link, "send", sent.append)
    session._receive(Ready("w", {}))
    for request in ("delta", "end", "honest"):
        session.submit(request, EventStream(5), 2, False)
        session.extend(request, 3, True)
        session.extend(request, 1, True)
    streams = dict(session._streams)
    delta = WireDelta("delta", "t", usage.input, usage.cache_read, usage.output, usage.reasoning)
    end = WireFinished("end", Finished(FinishReason.STOP, usage))
    honest = WireFinished("honest", Finished(FinishReason.STOP, Usage(2, 3, 1, 2)))
    session._receive(Batch([delta, end, honest]))
    for request in ("delta", "end"):
        with pytest.raises(EngineError, match="counted more"):
            await streams[request].get()
    assert await streams["honest"].get() == honest.finished
    assert sent[-2:] == [Cancel("delta"), Cancel("end")]
    session.close()


async def test_health_tells_one_process_of_a_worker_from_the_next(tmp_path):
    """A worker that was killed and came back between two looks kept its circuit open for what the dead one failed."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    engine = WorkerEngine("d", session)
    for incarnation in ("first", "second"):
        session._failed("another worker answers at this endpoint")
        assert not (await engine.health()).ready
        session._link.incarnation = incarnation
        session._receive(Ready(incarnation, {}))
        session._receive(Stats(incarnation, 0, {"d": Health(ready=True)}))
        assert await engine.health() == Health(ready=True, process=incarnation)
    await engine.close()


async def test_what_isnt_prepared_in_time_is_no_sign_of_a_broken_worker(tmp_path, monkeypatch):
    """Eight slow grammars of one tenant opened the breaker, and nobody's requests reached the model any more."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    monkeypatch.setattr(session._link, "send", [].append)
    session._receive(Ready("w", {}))
    request = GenerationRequest(id="a", tenant="t", domain="t", kind=Kind.CHAT)
    with pytest.raises(OverloadedError):
        await session.call(Prepare(1, "d", request), 0)
    with pytest.raises(UnreachableError):
        await session.call(UsageOf(2, "a"), 0)
    session.close()


async def test_a_worker_that_sends_without_end_leaves_the_loop_to_others(tmp_path, monkeypatch):
    """The loop stood for as long as such a flood went on: no renewal, nobody's stream."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=60, silence_seconds=60)
    link, read = session._link, []
    await asyncio.sleep(0)
    monkeypatch.setattr(link, "_socket", Flood(link._socket))
    monkeypatch.setattr(link, "_inbound", link)
    monkeypatch.setattr(link, "read", lambda _: Stats("", 0, {}), raising=False)
    monkeypatch.setattr(link, "_receive", read.append)
    link._read_all()
    link._read_all()  # the socket's descriptor calls once more: that begins no second chain of turns
    assert len(read) == 2 * FRAMES_A_TURN
    for turn in (3, 4):
        await asyncio.sleep(0)
        assert len(read) == turn * FRAMES_A_TURN
    session.close()
    assert len(read) == 4 * FRAMES_A_TURN


async def test_a_worker_that_is_heard_is_not_silent(tmp_path, monkeypatch):
    """Of what it sent in a pause of the loop a part may still be on its way, with the answer to our renewal."""
    session = WorkerSession(f"ipc://{tmp_path}/nobody", renew_seconds=0.01, silence_seconds=5)
    link = session._link
    told, has_told = [], asyncio.Event()

    def tell(what):
        told.append(what)
        has_told.set()

    frames = [[b"", b""]]

    def receive(_):
        if frames:
            return frames.pop()
        raise zmq.Again

    monkeypatch.setattr(link, "_socket", SimpleNamespace(recv_multipart=receive, close=link._socket.close))
    monkeypatch.setattr(link, "_inbound", SimpleNamespace(read=lambda _: Batch([])))
    monkeypatch.setattr(link, "_failed", tell)
    monkeypatch.setattr(link, "send", tell)
    link._unanswered_since = link._clock() - 60
    await has_told.wait()
    assert told == [Renew(0)]
    session.close()


async def test_a_frame_beyond_the_bound_ends_the_connection_and_not_the_gateway(tmp_path, monkeypatch):
    """A worker could have a gateway take as much memory as it sent."""
    monkeypatch.setattr("inference.clients.link.MAX_ANSWER_BYTES", 1 << 16)
    endpoint = f"ipc://{tmp_path}/w"
    large = Batch([WireDelta("a", "x" * (1 << 16), 1, 0, 1, 0)])
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.RCVTIMEO, 20_000)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(endpoint)
        session = WorkerSession(endpoint, renew_seconds=0.02, silence_seconds=60)
        received, ends = [], []
        receive, failed = session._receive, session._failed
        monkeypatch.setattr(session._link, "_receive", lambda message: (received.append(message), receive(message)))
        monkeypatch.setattr(session._link, "_failed", lambda reason: (ends.append(reason), failed(reason)))

        def serve():
            """Answer what comes, the first session's Hello with too much as well, until a second one is open."""
            first, frames = None, Counter()

            def send(identity, message):
                frames[identity] += 1
                router.send_multipart([identity, numbered(frames[identity]), encode(message)])

            for _ in range(100):
                identity, _, body = router.recv_multipart()
                if body != encode(Hello()):
                    send(identity, Stats("w", 0, {}))
                    continue
                send(identity, Ready("w", {}))
                if first is not None:
                    return
                first = identity
                send(identity, large)

        try:
            await asyncio.to_thread(serve)
            assert len(ends) == 1
            async with asyncio.timeout(60):
                while not session.is_up:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert large not in received
        finally:
            session.close()


def test_a_session_has_no_larger_frame_than_a_gateway_takes():
    [unread] = [field.default for field in fields(WorkerConfig) if field.name == "session_bytes"]
    assert unread <= MAX_ANSWER_BYTES


class Flood:
    """A socket on which there is always one more frame."""

    def __init__(self, socket):
        self._socket = socket

    def recv_multipart(self, *_):
        return [b"", b""]

    def __getattr__(self, name):
        return getattr(self._socket, name)
