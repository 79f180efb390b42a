"""A server that was restarted as another one than the one that was met."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from inference.clients.remote.dialects import DIALECTS
from inference.clients.remote.faults import AskError
from inference.errors import OverloadedError
from inference.types import FinishReason
from tests.inference.engine_contract import chat, end_of, run, until
from tests.upstream import MODEL, Plan, Upstream, serving

CHANGES = {
    "another model": ({"model": "another"}, MODEL),
    "an older version": ({"version": "0.8.5"}, "0.8.5"),
    "another key": ({"key": "sk-new"}, "401"),
}
changed = pytest.mark.parametrize("change", CHANGES)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Looks are frequent, but nothing is asked anew because of the time."""
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 0.01)
    monkeypatch.setattr("inference.clients.remote.probe.UNREADY_SECONDS", 0.01)
    monkeypatch.setattr("inference.clients.remote.probe.MEET_SECONDS", 3600.0)


class Port:
    """A port at which one server follows the other."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._port = 0

    async def serve(self, **attributes) -> Upstream:
        await self.stop()
        upstream = Upstream()
        for name, value in attributes.items():
            setattr(upstream, name, value)
        await self._stack.enter_async_context(serving(upstream, self._port))
        self._port = int(upstream.address.rpartition(":")[2])
        return upstream

    async def stop(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def port():
    port = Port()
    yield port
    await port.stop()


async def becomes(engine, *, ready):
    async def is_so():
        return (await engine.health()).ready is ready

    await until(is_so)
    return await engine.health()


async def asked(upstream, path):
    before = len(upstream.bodies(path))

    async def is_asked():
        return len(upstream.bodies(path)) > before

    await until(is_asked)


@changed
async def test_after_a_look_that_failed_it_takes_no_work_until_it_is_what_it_was(remote, port, change):
    attributes, why = CHANGES[change]
    engine, _ = await remote(at=await port.serve())
    await port.stop()
    assert (await becomes(engine, ready=False)).reason == "does not answer"
    await port.serve(**attributes)

    async def is_seen():
        return why in (await engine.health()).detail

    await until(is_seen)
    assert (await engine.health()).reason == "is not set up rightly"
    await port.serve()
    await becomes(engine, ready=True)
    assert end_of(await run(engine, chat("a b"))).reason is FinishReason.STOP


@pytest.mark.parametrize("change", ["another model", "another key"])
async def test_after_a_request_that_it_refuses_as_it_is_set_up(remote, port, monkeypatch, change):
    """No look fell into the restart."""
    attributes, why = CHANGES[change]
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 3600.0)
    engine, _ = await remote(at=await port.serve())
    await port.serve(**attributes)
    assert (await engine.health()).ready
    with pytest.raises(OverloadedError, match="set up"):
        await run(engine, chat("a"))
    health = await becomes(engine, ready=False)
    assert health.reason == "is not set up rightly"
    assert why in health.detail


async def test_after_a_stream_that_broke(remote, port, monkeypatch):
    """A server that was told to stop breaks its streams off and says nothing else."""
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 3600.0)
    upstream = await port.serve()
    engine, _ = await remote(at=upstream)
    upstream.version = "0.8.5"
    upstream.plans = [Plan(die_at=2)]
    assert end_of(await run(engine, chat("a b"))).reason is FinishReason.ERROR
    assert "0.8.5" in (await becomes(engine, ready=False)).detail


@changed
async def test_after_a_while_in_any_case(remote, port, monkeypatch, change):
    attributes, why = CHANGES[change]
    monkeypatch.setattr("inference.clients.remote.probe.MEET_SECONDS", 0.02)
    upstream = await port.serve()
    engine, _ = await remote(at=upstream)
    for name, value in attributes.items():
        setattr(upstream, name, value)
    health = await becomes(engine, ready=False)
    assert health.reason == "is not set up rightly"
    assert why in health.detail


async def test_a_server_that_refuses_one_request_and_is_what_it_was_goes_on(remote, port):
    """Else a client who knows what a proxy refuses keeps the deployment from all others."""
    upstream = await port.serve()
    engine, _ = await remote(at=upstream)
    upstream.plans = [Plan(status=403)]
    with pytest.raises(OverloadedError):
        await run(engine, chat("a"))
    await asked(upstream, "/v1/models")
    await asked(upstream, "/health")
    assert (await engine.health()).ready
    assert end_of(await run(engine, chat("a"))).reason is FinishReason.STOP


async def test_requests_that_are_refused_here_say_nothing_of_the_server(remote, port, monkeypatch):
    """One tenant whose queue is full had it looked at and met anew, again and again."""
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 3600.0)
    upstream = await port.serve()
    upstream.plan = Plan(stall_at=2)
    options = {"concurrency": 1, "queue": 2, "queue_seconds": 3600}
    engine, _ = await remote(at=upstream, options=options)
    running = asyncio.create_task(run(engine, chat("a b c")))
    await upstream.until(lambda: upstream.running)
    waiting = asyncio.create_task(run(engine, chat("a b c")))

    async def is_waiting():
        return engine._pool.places.waiting == 1

    await until(is_waiting)
    upstream.seen.clear()
    with pytest.raises(OverloadedError) as caught:
        await run(engine, chat("x"))
    assert caught.value.code == "tenant_queue_full"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    engine._options = replace(engine._options, queue_seconds=0.01)
    with pytest.raises(OverloadedError, match="no place"):
        await run(engine, chat("x"))
    assert not engine._probe._soon.is_set()
    assert {path for path, _ in upstream.seen} == {"/tokenize"}
    upstream.released.set()
    await running


async def test_another_context_is_noticed(remote, port, monkeypatch):
    monkeypatch.setattr("inference.clients.remote.probe.MEET_SECONDS", 0.02)
    upstream = await port.serve()
    engine, _ = await remote(at=upstream)
    upstream.context = 4096

    async def is_noticed():
        return engine.info.max_context == 4096

    await until(is_noticed)


BUSY = [("vllm", "/v1/models"), ("vllm", "/version"), ("sglang", "/get_server_info")]


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr("inference.clients.remote.pool.ASK_SECONDS", 0.5)
    monkeypatch.setattr("inference.clients.remote.probe.MEET_SECONDS", 0.02)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(("dialect", "path"), BUSY)
async def test_a_server_that_is_well_and_too_busy_to_say_what_it_is_goes_on(remote, dialect, path):
    """It was taken from all tenants after two questions that it answered too late."""
    engine, upstream = await remote(dialect)
    upstream.silent_at = {path}
    for _ in range(5):
        await asked(upstream, path)
        assert (await engine.health()).ready
    assert f"no answer to {path}" in (await engine.health()).detail
    assert end_of(await run(engine, chat("a b"))).reason is FinishReason.STOP
    upstream.silent_at, upstream.model = set(), "another"  # what it says then counts at once
    upstream.released.set()
    assert (await becomes(engine, ready=False)).reason == "is not set up rightly"


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_never_says_again_what_it_is_is_believed_for_a_while_only(remote, monkeypatch):
    engine, upstream = await remote("vllm")
    upstream.silent_at = {"/v1/models"}
    await asked(upstream, "/v1/models")
    assert (await engine.health()).ready
    monkeypatch.setattr("inference.clients.remote.probe.UNANSWERED_SECONDS", 0.0)
    assert (await becomes(engine, ready=False)).reason == "does not answer"
    for _ in range(3):
        await asked(upstream, "/v1/models")
        assert not (await engine.health()).ready
    upstream.silent_at = set()
    await becomes(engine, ready=True)


@pytest.mark.usefixtures("_impatient")
async def test_a_server_that_came_back_has_to_say_what_it_is(remote):
    """It may be another one, however well."""
    engine, upstream = await remote("vllm")
    upstream.is_well = False
    await becomes(engine, ready=False)
    upstream.silent_at, upstream.is_well = {"/v1/models"}, True
    for _ in range(3):
        await asked(upstream, "/v1/models")
        assert not (await engine.health()).ready
    upstream.silent_at = set()
    await becomes(engine, ready=True)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_version_that_nobody_answers_for_is_not_taken_for_a_new_one(dialect):
    """A server that has no path for it is new, one that is just gone may be any."""

    def failing(status):
        async def ask(path):
            raise AskError(status, path)

        return ask

    assert await DIALECTS[dialect].too_old(failing(404)) == ""
    with pytest.raises(AskError):
        await DIALECTS[dialect].too_old(failing(0))
