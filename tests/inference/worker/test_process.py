"""What becomes of requests, records and sessions when processes die, vanish or misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from inference.clients import worker as client
from inference.clients.worker import WorkerEngine
from inference.config import EngineConfig
from inference.engine import Engine, EngineSpec
from inference.errors import DrainingError, InvalidRequestError, OverloadedError, UnpreparedError, UnreachableError
from inference.open import open_engine
from inference.protocol import Renew, Submit
from inference.types import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Lost,
    NothingRan,
    Prepared,
    Running,
)
from tests.inference.engine_contract import chat, collect, embedding, end_of, evidence, run, same, text_of, until
from tests.inference.worker.processes import ECHO, ECHO_OPTIONS, SLOW, WorkerProcess, ready

pytestmark = pytest.mark.slow  # real processes, each a second or more

Open = Callable[..., Any]
PATIENCE = 120  # seconds, which only end a hang


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerProcess]:
    """A worker that no test ends, changes or makes drain."""
    process = WorkerProcess().start()
    yield process
    process.close()


@pytest.fixture
def start() -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start_worker(*engines: EngineConfig, **config: Any) -> WorkerProcess:
        started.append(WorkerProcess(*engines, **config))
        return started[-1].start()

    yield start_worker
    for process in started:
        process.close()


@pytest.fixture
async def engine_of() -> AsyncIterator[Open]:
    opened: list[Engine] = []

    async def open_ready(worker: WorkerProcess, deployment: str, **options: Any) -> WorkerEngine:
        engine = await worker.open(deployment, **options)
        opened.append(engine)
        return cast("WorkerEngine", engine)

    yield open_ready
    for engine in opened:
        await engine.close()


class Streaming:
    """A request that is being generated: its events so far, and a wait for a number of tokens."""

    def __init__(self, engine: Engine, prepared: Prepared) -> None:
        self.id = prepared.request.id
        self.events: list[Event] = []
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(self._run(engine, prepared))

    @classmethod
    async def start(cls, engine: Engine, tokens: int = 3) -> Streaming:
        prepared = await engine.prepare(chat("endless ", ignore_eos=True))
        stream = cls(engine, prepared)
        await stream.until(tokens)
        return stream

    async def _run(self, engine: Engine, prepared: Prepared) -> None:
        async for event in engine.generate(prepared, 100_000, True):
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    async def until(self, tokens: int) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.usage >= tokens)

    @property
    def usage(self) -> int:
        return max((event.usage.completion for event in self.events if isinstance(event, Delta)), default=0)

    async def end(self) -> Finished:
        async with asyncio.timeout(PATIENCE):
            await self.task
        return end_of(self.events)


async def test_a_killed_worker_ends_each_stream_with_its_last_usage(start: Open, engine_of: Open) -> None:
    worker = start(SLOW)
    engine = await engine_of(worker, "slow")
    done = chat("all of it")
    await run(engine, done)
    first, second = await Streaming.start(engine), await Streaming.start(engine)
    worker.stop(signal.SIGKILL)
    worker.start()
    for stream in (first, second):
        finished = await stream.end()
        assert finished.reason is FinishReason.ERROR
        assert not finished.exact
        assert finished.error is not None
        assert (finished.error.code, finished.error.retryable) == ("worker_lost", True)
        assert finished.usage.completion == stream.usage
    await ready(engine)
    assert await engine.usage_of(first.id) == Lost()
    assert isinstance(await engine.usage_of(done.id), Finished)
    assert text_of(await run(engine, chat("again"))) == "again"


async def test_silence_alone_ends_the_requests(start: Open, engine_of: Open) -> None:
    worker = start(SLOW)
    engine = await engine_of(worker, "slow", renew_seconds=0.05, silence_seconds=3.0)
    stream = await Streaming.start(engine)
    assert worker.process is not None
    worker.process.send_signal(signal.SIGSTOP)
    finished = await stream.end()
    assert finished.error is not None
    assert "silent" in finished.error.message
    with pytest.raises(UnreachableError):
        await engine.prepare(chat("hi"))
    worker.process.send_signal(signal.SIGCONT)
    await ready(engine)
    assert text_of(await run(engine, chat("back"))) == "back"


async def test_a_second_worker_on_one_record_refuses(start: Open, engine_of: Open) -> None:
    worker = start(ECHO)
    await engine_of(worker, "echo")
    second = WorkerProcess(ECHO)
    second.config = worker.config
    worker.config.save(second.folder / "spec.json")
    try:
        assert await asyncio.to_thread(second.start().wait) == 3  # the first one's session is renewed meanwhile
        assert "another worker holds the record" in second.lines()[-1]["event"]
        assert text_of(await run(await engine_of(worker, "echo"), chat("still mine"))) == "still mine"
    finally:
        second.close()


async def test_the_requests_of_a_gateway_that_vanished_are_cancelled(start: Open, engine_of: Open) -> None:
    worker = start(SLOW, session_seconds=3.0)
    engine = await engine_of(worker, "slow", renew_seconds=0.05)
    stream = await Streaming.start(engine)
    # The gateway's process stands still: nothing is sent, the socket stays open.
    link = engine._session._link
    link._renewals.cancel()
    link._loop.remove_reader(link._descriptor)
    client._sessions.clear()
    other = await engine_of(worker, "slow", renew_seconds=0.05)
    found = await evidence(other, stream.id)
    assert isinstance(found, Finished)
    assert found.reason is FinishReason.CANCELLED
    assert found.usage.completion >= 3
    # When it wakes up, it finds the exact end among what was sent to it.
    link._loop.add_reader(link._descriptor, link._read_all)
    assert (await stream.end()).usage.completion <= found.usage.completion


async def test_a_gap_in_the_frames_fails_the_session_loudly(
    shared: WorkerProcess, engine_of: Open, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await engine_of(shared, "slow")
    stream = await Streaming.start(engine)
    engine._session._link._frames += 1
    await engine.extend(stream.id, 200_000, True)
    finished = await stream.end()
    assert finished.error is not None
    assert finished.error.code == "worker_lost"
    assert "frame" in finished.error.message
    assert "failed" in caplog.text
    await ready(engine)
    found = await evidence(engine, stream.id)
    assert isinstance(found, Finished)
    assert found.reason is FinishReason.CANCELLED


async def test_what_was_prepared_expires(start: Open, engine_of: Open) -> None:
    worker = start(ECHO, prepared_seconds=0.0)
    engine = await engine_of(worker, "echo")
    prepared = await engine.prepare(chat("hello"))
    with pytest.raises(UnpreparedError) as caught:
        await collect(engine.generate(prepared, 100, True))
    assert caught.value.code == "unprepared"
    # Nothing ran, and nothing was declared: the record learns of it only now.
    assert await engine.usage_of(prepared.request.id) == NothingRan()


async def test_a_refused_request_is_submitted_once_and_forgotten(
    shared: WorkerProcess, engine_of: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await engine_of(shared, "echo")
    sent: list[object] = []
    send = engine._session._link.send
    monkeypatch.setattr(engine._session._link, "send", lambda message: (sent.append(message), send(message)))
    with pytest.raises(UnpreparedError):
        await collect(engine.generate(Prepared(chat("unprepared"), 100, 100), 100, True))
    assert [type(message) for message in sent if not isinstance(message, Renew)] == [Submit]
    assert not engine._session._streams
    left = asyncio.create_task(collect(engine.generate(Prepared(chat("unprepared"), 100, 100), 100, True)))
    await asyncio.sleep(0)  # submitted; left before the refusal comes
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    await engine.usage_of(uuid.uuid4().hex)  # answered after the refusal
    assert not engine._session._streams


async def test_a_burst_of_prompts_of_5_kb_is_answered(shared: WorkerProcess, engine_of: Open) -> None:
    engine = await engine_of(shared, "echo")
    prompts = [f"{number:02}".ljust(5000, "x") for number in range(12)]
    answers = await asyncio.gather(*(run(engine, chat(prompt, max_tokens=2)) for prompt in prompts))
    assert [text_of(events) for events in answers] == [prompt[:2] for prompt in prompts]


async def successor(engine: WorkerEngine, worker: WorkerProcess) -> None:
    """Start the worker again, and return when the engine talks to the new process."""
    before = engine._session._link.incarnation
    worker.start()

    async def is_another() -> bool:
        return engine._session._link.incarnation not in {"", before}

    await until(is_another)
    await ready(engine)


async def test_prepared_prompts_are_bounded_in_bytes(start: Open, engine_of: Open) -> None:
    worker = start(ECHO, session_bytes=100_000)
    engine = await engine_of(worker, "echo")
    with pytest.raises(OverloadedError):
        for _ in range(100):
            await engine.prepare(chat("x" * 500))
    assert text_of(await run(await fresh(engine, engine_of, worker), chat("room"))) == "room"


async def fresh(engine: WorkerEngine, engine_of: Open, worker: WorkerProcess) -> WorkerEngine:
    """The same deployment over a new session."""
    await engine.close()
    return cast("WorkerEngine", await engine_of(worker, "echo"))


async def test_a_gateway_that_reads_too_slowly_loses_its_session(start: Open, engine_of: Open) -> None:
    worker = start(ECHO, session_bytes=20_000)
    engine = await engine_of(worker, "echo", renew_seconds=3)
    stream = await Streaming.start(engine)
    finished = await stream.end()
    assert finished.error is not None
    assert "too slow" in finished.error.message
    await ready(engine)
    assert isinstance(await evidence(engine, stream.id), Finished)


async def test_a_poisoned_step_fails_one_request_and_spares_its_mates(shared: WorkerProcess, engine_of: Open) -> None:
    engine = await engine_of(shared, "echo")
    mates = [asyncio.create_task(run(engine, chat("good work " * 20))) for _ in range(4)]
    poisoned = asyncio.create_task(run(engine, chat("POISON")))
    finished = end_of(await poisoned)
    assert finished.reason is FinishReason.ERROR
    assert finished.error is not None
    assert finished.error.code == "step_failed"
    for mate in mates:
        events = await mate
        assert end_of(events).reason is FinishReason.STOP
        assert text_of(events) == "good work " * 20
    embedder = await engine_of(shared, "embedder")
    assert end_of(await run(embedder, embedding("ok", "FAIL"), 0)).reason is FinishReason.ERROR
    assert end_of(await run(embedder, embedding("ok"), 0)).reason is FinishReason.STOP


async def test_a_bad_frame_costs_only_its_session(shared: WorkerProcess, engine_of: Open) -> None:
    engine = await engine_of(shared, "echo")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(shared.config.endpoint)
        for parts in ([b""], [b"x" * 8, b"\xc1"], [(1).to_bytes(8, "big"), b"\x91" * 100_000], [b"a", b"b", b"c"]):
            socket.send_multipart(parts)
        assert await asyncio.to_thread(socket.poll, PATIENCE * 1000)
    assert text_of(await run(engine, chat("fine"))) == "fine"


async def test_a_model_that_is_refused_leaves_the_others_alone(start: Open, engine_of: Open) -> None:
    refused = EngineConfig("refused", "fake", architecture="fake", options={"refuse": "it would answer wrongly"})
    worker = start(refused, ECHO)
    engine = await engine_of(worker, "echo")
    other = open_engine(EngineSpec("refused", "worker", worker.config.endpoint))

    async def says_why() -> bool:
        return "it would answer wrongly" in (await other.health()).detail

    await until(says_why)
    assert (await other.health()).reason == "model refused"
    with pytest.raises(OverloadedError) as caught:
        await other.prepare(chat("hi"))
    assert "wrongly" not in caught.value.message, "the whole reason, which may name paths, is the operator's"
    await other.close()
    assert text_of(await run(engine, chat("hi"))) == "hi"


async def test_sigterm_drains_and_leaves_with_status_0(start: Open, engine_of: Open) -> None:
    worker = start(SLOW, drain_seconds=2.0)
    engine = await engine_of(worker, "slow")
    long = await Streaming.start(engine)
    short = Streaming(engine, await engine.prepare(chat("short answer")))
    await short.until(10)  # of twelve
    assert (worker.folder / "s").is_socket()
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGTERM)

    async def is_draining() -> bool:
        return (await engine.health()).draining

    await until(is_draining)
    with pytest.raises(DrainingError):
        await engine.prepare(chat("too late"))
    assert (await short.end()).reason is FinishReason.STOP
    finished = await long.end()
    assert (finished.reason, finished.exact) == (FinishReason.CANCELLED, True)
    assert await asyncio.to_thread(worker.wait) == 0
    assert not (worker.folder / "s").exists()


async def test_sigterm_is_obeyed_while_a_model_loads(start: Open, engine_of: Open) -> None:
    loading = EngineConfig("loading", "fake", architecture="fake", options={"load_seconds": 600})
    worker = start(SLOW, loading)
    engine = await engine_of(worker, "slow")
    stream = await Streaming.start(engine)
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGTERM)
    await engine.cancel(stream.id)
    assert (await stream.end()).reason is FinishReason.CANCELLED
    assert await asyncio.to_thread(worker.wait) == 0


async def test_a_drained_deployment_refuses_while_others_serve(start: Open, engine_of: Open) -> None:
    worker = start(ECHO, SLOW)
    engine, other = await engine_of(worker, "slow"), await engine_of(worker, "echo")
    stream = await Streaming.start(engine)
    await engine.drain(0.05)
    assert (await stream.end()).reason is FinishReason.CANCELLED
    with pytest.raises(DrainingError):
        await engine.prepare(chat("late"))
    assert text_of(await run(other, chat("here"))) == "here"


async def test_models_come_and_go_while_others_stream(start: Open, engine_of: Open) -> None:
    worker = start(SLOW)
    engine = await engine_of(worker, "slow")
    pid = worker.process.pid
    stream = await Streaming.start(engine)
    worker.follow(SLOW, replace(ECHO, options={**ECHO_OPTIONS, "load_seconds": 0.2}))
    added = await engine_of(worker, "echo")
    assert text_of(await run(added, chat("new"))) == "new"
    leaving = await Streaming.start(added)
    worker.follow(SLOW)

    async def is_gone() -> bool:
        return added.info is None

    await until(is_gone)
    with pytest.raises(OverloadedError):
        await added.prepare(chat("late"))
    before = leaving.usage
    await leaving.until(before + 20)  # what ran when it was withdrawn goes on
    await added.cancel(leaving.id)
    assert (await leaving.end()).reason is FinishReason.CANCELLED
    seen = stream.usage
    await stream.until(seen + 3)
    await engine.cancel(stream.id)
    finished = await stream.end()
    assert (finished.reason, finished.exact) == (FinishReason.CANCELLED, True)
    assert worker.process.pid == pid


async def test_a_withdrawn_models_requests_end_at_the_deadline(start: Open, engine_of: Open) -> None:
    worker = start(SLOW, ECHO, withdraw_seconds=0.2)
    engine = await engine_of(worker, "echo")
    stream = await Streaming.start(engine)
    worker.follow(SLOW)
    finished = await stream.end()
    assert (finished.reason, finished.exact) == (FinishReason.CANCELLED, True)


async def test_a_step_that_does_not_end_is_seen_and_stops_the_heartbeat(
    start: Open, engine_of: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = tmp_path / "heartbeat"
    monkeypatch.setenv("SLUICE_HEARTBEAT", str(heartbeat))
    stuck = EngineConfig("stuck", "fake", architecture="fake", options={"step_seconds": 600})
    worker = start(stuck, ECHO, step_seconds=0.3)
    engine, other = await engine_of(worker, "stuck", renew_seconds=0.05), await engine_of(worker, "echo")
    assert heartbeat.exists()
    waiting = asyncio.create_task(run(engine, chat("never")))

    async def says_so() -> bool:
        health = await other.health()
        return not health.ready and "a step has not ended" in health.reason

    await until(says_so)
    with pytest.raises(OverloadedError):
        await other.prepare(chat("hi"))
    last = heartbeat.stat().st_mtime_ns
    for _ in range(30):  # renewals go on being answered
        await engine.usage_of(uuid.uuid4().hex)
        await asyncio.sleep(0.05)
    assert heartbeat.stat().st_mtime_ns == last
    worker.stop(signal.SIGKILL)
    waiting.cancel()


async def test_evidence_survives_a_restart(start: Open, engine_of: Open) -> None:
    worker = start(ECHO)
    engine = await engine_of(worker, "echo")
    request, never = chat("remember"), uuid.uuid4().hex
    finished = end_of(await run(engine, request))
    assert await engine.usage_of(never) == NothingRan()
    assert worker.stop() == 0
    await successor(engine, worker)
    assert same(cast("Finished", await engine.usage_of(request.id))) == same(finished)
    assert await engine.usage_of(never) == NothingRan()
    with pytest.raises(UnpreparedError):
        await run(engine, replace(chat("x"), id=never))


async def test_running_requests_are_reported_with_their_usage(shared: WorkerProcess, engine_of: Open) -> None:
    engine = await engine_of(shared, "slow")
    stream = await Streaming.start(engine, tokens=2)
    found = await engine.usage_of(stream.id)
    assert isinstance(found, Running)
    assert found.usage.completion >= 2
    await engine.cancel(stream.id)
    assert (await stream.end()).reason is FinishReason.CANCELLED


async def test_a_message_that_cannot_be_sent_is_refused_and_costs_nothing(
    shared: WorkerProcess, engine_of: Open
) -> None:
    engine = await engine_of(shared, "echo")
    with pytest.raises(InvalidRequestError, match="half a character"):
        await engine.prepare(chat("\ud800"))
    with pytest.raises(InvalidRequestError, match="larger"):
        await engine.prepare(chat("x" * (33 * 1024 * 1024)))
    assert text_of(await run(engine, chat("fine"))) == "fine"


async def test_a_busy_event_loop_does_not_take_its_worker_for_dead(shared: WorkerProcess, engine_of: Open) -> None:
    engine = await engine_of(shared, "echo", renew_seconds=0.05, silence_seconds=3.0)
    link = engine._session._link
    # Whatever order a loop serves descriptors and timers in, the judge looks into the socket by itself.
    link._loop.remove_reader(link._descriptor)
    deadline = time.monotonic() + PATIENCE
    while not link._socket.poll(1000):  # the loop itself stands still: the answer waits in the socket
        assert time.monotonic() < deadline
        link.send(Renew(0))
        await asyncio.sleep(0)  # what the sending found in the socket is read, perhaps the answer
    link._clock = lambda: time.monotonic() + 10.0  # and that took ten seconds
    before = link._frames

    async def has_judged() -> bool:
        return link._closed or link._frames > before

    await until(has_judged)
    assert engine._session._link is link
    link._loop.add_reader(link._descriptor, link._read_all)
    assert text_of(await run(engine, chat("here"))) == "here"


async def test_deployments_of_one_worker_share_a_session(shared: WorkerProcess, engine_of: Open) -> None:
    engine, embedder = await engine_of(shared, "echo"), await engine_of(shared, "embedder")
    assert engine._session is embedder._session
    await embedder.close()
    assert text_of(await run(engine, chat("still open"))) == "still open"
    await engine.close()
    assert shared.config.endpoint not in client._sessions.get(asyncio.get_running_loop(), {})
