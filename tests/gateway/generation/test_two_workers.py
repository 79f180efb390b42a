"""Seeded streams on two real workers of a small model in float32: one is killed, and every text is as without that."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from base.ids import uuid7
from billing.rating import charge
from gateway.generation.attempts import attempt_id
from gateway.generation.generation import start_generation
from inference.config import EngineConfig
from inference.messages import Message
from inference.types import Finished, FinishReason, SamplingParams
from tests.gateway.doubles import CARD, FAKE, collect, make_deployment, make_intent, make_stand
from tests.inference.engine_contract import until
from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.inference.worker.processes import WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.stack]

STREAMS = 20
TOKENS = 400


@pytest.fixture
async def stand(tmp_path, monkeypatch):
    """A stand whose one model has replicas on two worker processes, kept in `stand.workers`."""
    model = tmp_path / "model"
    model.mkdir()
    save_tiny("llama", model, vocab_size=save_tokenizer(model))
    sockets = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(sockets))
    deployment = replace(make_deployment(FAKE, replicas=2), backend="worker", options={})
    options = {"cache": str(tmp_path / "cache")}
    config = EngineConfig(str(deployment.id), str(model), dtype="float32", kv_tokens=16_384, options=options)
    workers = [WorkerProcess(config, threads=1, endpoint=f"ipc://{sockets}/{name}.sock") for name in ("n1", "n2")]
    made = await make_stand(credit=10**9, terms={"concurrency": STREAMS, "slice_tokens": 64})
    made.workers = [worker.start() for worker in workers]
    try:
        catalogue = replace(made.runtime.catalogue.snapshot.catalogue, deployments={"fake": (deployment,)})
        made.runtime.catalogue.snapshot = replace(made.runtime.catalogue.snapshot, catalogue=catalogue)
        made.runtime.engines.follow(catalogue.all_deployments())
        assert await made.runtime.engines.connected(300)
        yield made
        await made.runtime.engines.close()
    finally:
        for worker in workers:
            worker.close()
        shutil.rmtree(sockets)


async def start(stand, seed):
    sampling = SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=seed, ignore_eos=True)
    messages = (Message("user", (f"the quick brown fox jumps over the end {seed}",)),)
    intent = make_intent(messages=messages, sampling=sampling)
    room = msgspec.structs.replace(stand.principal.request_bucket, limit=10**6, burst=10**6)
    principal = replace(stand.principal, request_bucket=room)
    return await start_generation(stand.runtime, principal, intent, uuid7())


async def run_all(stand):
    generations = await asyncio.gather(*(start(stand, seed) for seed in range(STREAMS)))
    return generations, asyncio.gather(*(collect(generation) for generation in generations))


async def test_20_streams_end_with_the_text_they_would_have_had_and_are_charged_once(stand):
    _, reading = await run_all(stand)
    expected = await reading
    assert {outcome.usage.output for _, outcome, _ in expected} == {TOKENS}
    posted = stand.writer.wallet.posted

    generations, reading = await run_all(stand)
    victims = [generation for generation in generations if generation.route.node == "n1"]
    assert victims, "load is shared"
    await until(lambda: began(victims))
    stand.workers[0].stop(signal.SIGKILL)
    got = await reading

    assert [text for _, _, text in got] == [text for _, _, text in expected]
    assert all((outcome.reason, outcome.error) == (FinishReason.LENGTH, None) for _, outcome, _ in got)
    assert all(
        outcome.usage.prompt == before.usage.prompt
        for (_, outcome, _), (_, before, _) in zip(got, expected, strict=True)
    )
    assert {outcome.usage.output for _, outcome, _ in got} == {TOKENS}
    charges = [outcome.charge for _, outcome, _ in got]
    assert charges == [charge(outcome.usage.classes(), CARD, 10_000) for _, outcome, _ in got]
    assert posted - stand.writer.wallet.posted == sum(charges), "each is charged once"
    assert len(stand.writer.settles) == 2 * STREAMS
    moved = [generation for generation in victims if generation.route.node == "n2"]
    assert moved, "some were in the middle"
    outcomes = dict(zip(generations, (outcome for _, outcome, _ in got), strict=True))
    [second] = [entry.engine for entry in stand.runtime.engines.entries() if entry.replica.place == "n2"]
    for generation in moved:
        end = await second.usage_of(attempt_id(generation.id, 1))
        assert isinstance(end, Finished)
        assert end.usage == outcomes[generation].usage, "the second worker's record has the whole request"
    assert not stand.writer.holds


async def began(generations):
    return all(generation.checkpoint().get("output", 0) > 3 for generation in generations)
