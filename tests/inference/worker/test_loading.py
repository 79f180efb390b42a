"""The loader, driven by hand: what a changed spec does to what is served, one action at a time."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inference.config import EngineConfig, WorkerConfig
from inference.types import LOADING, Health
from inference.worker.loading import FAILED, REFUSED, Loader
from inference.worker.record import Record
from inference.worker.requests import Command, Request, StopCommand, SubmitCommand
from inference.worker.serving import Serving
from inference.worker.step_loop import StepLoop
from tests.inference.engine_contract import chat

A = EngineConfig("a", "fake", architecture="fake")
B = EngineConfig("b", "fake", architecture="fake")
REFUSED_B = replace(B, options={"refuse": "/srv/models/b is no model"})


class Bench:
    """A loader and the step loop that executes its commands, without threads and sockets."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.path = folder / "spec.json"
        self.announced = 0
        self.inbox: SimpleQueue[Command] = SimpleQueue()
        self.registry: dict[str, Request] = {}
        self.loop = StepLoop(record=record, registry=self.registry, inbox=self.inbox, outbox=self)
        self.serving = Serving(self.loop, step_seconds=60.0)
        self.config = WorkerConfig("ipc:///s", str(folder / "record"), "secret", (A,))
        self.config.save(self.path)
        self.loader = Loader(
            self.config,
            self.path,
            serving=self.serving,
            inbox=self.inbox,
            announce=self.announce,
            ending=threading.Event(),
        )

    def announce(self) -> None:
        self.announced += 1

    def send(self, session: bytes, message: Any) -> None:
        """Events are of no interest here."""

    def follow(self, *engines: EngineConfig) -> None:
        self.config = replace(self.config, engines=engines)
        self.config.save(self.path)

    def settle(self) -> None:
        while self.loader.step():
            pass
        self.round()

    def round(self) -> None:
        self.loop._read_inbox(block=False)
        for deployment in self.loop._deployments:
            self.loop._step(deployment.engine)
        self.loop._check_drains()

    def turn(self) -> None:
        """One turn of the loop's own `run`."""
        self.inbox.put(StopCommand())
        self.loop.run()
        self.loop._stopped = False

    def submit(self, name: str, **sampling: Any) -> Request:
        deployment = self.serving.deployments[name]
        request = chat("hello", **sampling)
        running = Request(request.id, b"s", deployment, deployment.prepare(request), 1000, True)
        self.registry[running.id] = running
        self.inbox.put(SubmitCommand(running))
        return running


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    with Record(tmp_path / "record") as record:
        yield Bench(tmp_path, record)


def test_a_new_model_is_reported_as_loading_until_it_is_served(bench: Bench) -> None:
    assert bench.serving.unready["a"] == Health(ready=False, reason=LOADING, revision=A.revision)
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}
    assert not bench.serving.unready
    assert bench.serving.deployments["a"].info.revision == A.revision
    bench.follow(A, B)
    bench.loader._read()
    assert bench.serving.unready["b"].reason == LOADING
    bench.settle()
    assert bench.serving.deployments.keys() == {"a", "b"}
    assert [each.id for each in bench.loop._deployments] == ["a", "b"]


def test_what_is_withdrawn_takes_nothing_new_and_lets_what_runs_end(bench: Bench) -> None:
    bench.follow(A, B)
    bench.settle()
    request = bench.submit("b", max_tokens=3)
    bench.round()
    bench.follow(A)
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}
    assert request.id in bench.registry
    bench.turn()
    for _ in range(10):
        bench.round()
    assert request.id not in bench.registry
    assert [each.id for each in bench.loop._deployments] == ["a"]
    assert bench.loop.health.keys() == {"a"}


def test_changed_settings_take_over_and_what_runs_ends_under_the_old_ones(bench: Bench) -> None:
    bench.settle()
    earlier = bench.serving.deployments["a"]
    request = bench.submit("a", max_tokens=3)
    bench.round()
    changed = replace(A, max_rows=2)
    bench.follow(changed)
    bench.settle()
    assert bench.serving.deployments["a"] is not earlier
    assert bench.serving.deployments["a"].info.revision == changed.revision
    assert request.id in bench.registry
    assert bench.loop.health["a"].revision == changed.revision
    bench.turn()
    assert (bench.loop.health["a"].revision, bench.loop.health["a"].draining) == (changed.revision, False)
    for _ in range(10):
        bench.round()
    assert request.id not in bench.registry
    assert bench.loop._deployments == [bench.serving.deployments["a"]]


def test_what_was_withdrawn_leaves_no_memory_in_use(bench: Bench) -> None:
    bench.follow(A, B)
    bench.settle()
    withdrawn = bench.serving.deployments["b"]
    withdrawn.circle = withdrawn  # type: ignore[attr-defined]  # as within a model
    gone = weakref.ref(withdrawn)
    del withdrawn
    bench.follow(A)
    bench.settle()
    bench.settle()
    assert gone() is None


def test_a_refused_model_says_why_to_operators_alone_and_is_not_tried_again(bench: Bench) -> None:
    bench.follow(A, REFUSED_B)
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}
    state = bench.serving.unready["b"]
    assert (state.reason, state.detail, state.revision) == (REFUSED, "/srv/models/b is no model", REFUSED_B.revision)
    assert not bench.loader.step()
    bench.follow(A, B)
    bench.settle()
    assert bench.serving.deployments.keys() == {"a", "b"}
    bench.follow(A, REFUSED_B)  # settings that are refused end what served under the old ones, as the catalogue says
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}
    assert bench.serving.unready["b"].reason == REFUSED
    assert [each.id for each in bench.loop._deployments] == ["a"]


def test_a_model_on_which_a_library_panics_is_refused_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker ended with all other models, and the next one began with it again."""

    class PanicError(BaseException):
        """As a library in Rust raises one: no Exception."""

    loaded = bench.loader._loaded

    def panicking(config: EngineConfig) -> Any:
        if config.deployment == "b":
            raise PanicError("a merge without its prefix")
        return loaded(config)

    monkeypatch.setattr(bench.loader, "_loaded", panicking)
    bench.follow(A, B)
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}
    assert bench.serving.unready["b"].reason == FAILED
    assert not bench.loader.step(), "it is not tried again"


def test_a_spec_that_cannot_be_read_changes_nothing(bench: Bench) -> None:
    bench.settle()
    bench.path.write_text("{")
    bench.settle()
    assert bench.serving.deployments.keys() == {"a"}


def test_a_model_that_left_before_it_was_loaded_is_forgotten(bench: Bench) -> None:
    bench.follow(B)
    bench.loader._read()
    assert bench.serving.unready.keys() == {"b"}


def test_other_rates_change_the_shares_and_load_nothing(bench: Bench) -> None:
    bench.settle()
    deployment = bench.serving.deployments["a"]
    scheduler = deployment.engine.schedulers[0]
    assert scheduler.waiting.queue.prices.output == 2000
    bench.follow(replace(A, rates={"input": 10, "cache_read": 1, "output": 50}))
    bench.settle()
    assert bench.serving.deployments["a"] is deployment
    assert scheduler.waiting.queue.prices.output == 5000


def test_a_deployment_whose_settings_cannot_be_meant_says_why_and_no_other_is_touched(bench: Bench) -> None:
    bench.follow(A, B)
    bench.settle()
    a, b = bench.serving.deployments["a"], bench.serving.deployments["b"]
    bench.config = replace(bench.config, refused={"b": "max_rows is a whole number"})
    bench.follow(A)
    bench.settle()
    assert bench.serving.deployments == {"a": a}
    health = bench.serving.unready["b"]
    assert (health.ready, health.reason, health.detail) == (False, REFUSED, "max_rows is a whole number")
    bench.config = replace(bench.config, refused={})
    bench.follow(A, B)
    bench.settle()
    assert bench.serving.unready == {}
    assert bench.serving.deployments["b"] is not b


def test_adapters_follow_the_spec_without_loading_anew(bench: Bench) -> None:
    bench.settle()
    earlier = bench.serving.deployments["a"]
    request = bench.submit("a", max_tokens=3)
    bench.round()
    bench.follow(replace(A, adapters={"law": "/adapters/law"}))
    bench.settle()
    assert bench.serving.deployments["a"] is earlier
    assert request.id in bench.registry
    assert earlier.info.adapters == {"law": "this model takes no adapters"}
    bench.follow(A)
    bench.settle()
    assert not earlier.info.adapters
