"""When a start is over, and what is told of it."""

import pytest

from operation.serve import starting
from operation.serve.starting import Starting

URL = "http://127.0.0.1:1"


@pytest.fixture
def readiness(monkeypatch):
    """A function that sets what ``/readyz`` answers: states, failing checks, notes."""
    told = {"answer": None}
    monkeypatch.setattr(starting, "_readiness", lambda _: told["answer"])

    def set_to(states, problems=(), notes=()):
        told["answer"] = starting._Answer(states, dict(problems), dict(notes))

    return set_to


@pytest.fixture
def seconds(monkeypatch):
    """The clock, to be moved on by the test."""
    now = [100.0]
    monkeypatch.setattr(starting.time, "monotonic", lambda: now[0])
    return now


def test_nobody_answers_nothing_is_told(readiness):
    said, shown = [], []
    start = Starting(URL, said.append, lambda *step: shown.append(step))
    assert not start.is_over({"a"})
    assert not start.is_over({"a"}, is_served=False)
    assert said == []
    assert set(shown) == {("gateway", "")}


def test_ready_comes_when_all_is_loaded_or_refused_and_not_before(readiness):
    said, steps = [], []
    start = Starting(URL, said.append, lambda *step: steps.append(step), lambda *step: steps.append(step))
    for states in (
        {"a": "not heard from yet", "b": "not heard from yet"},
        {"a": "loading: compiling kernels, once", "b": "loading"},
        {"a": "ready", "b": "loading: loading"},
        {"a": "ready", "b": "the worker does not serve this deployment"},
    ):
        readiness(states)
        assert not start.is_over({"a", "b"})
    assert said == []
    readiness({"a": "ready", "b": "model refused: too big"})
    assert start.is_over({"a", "b"})
    assert steps == [
        ("gateway", ""),
        ("gateway", "done"),
        ("a", "compiling kernels, once"),
        ("a", "ready"),
        ("b", "loading"),
        ("b", "refused"),
    ]
    assert [line.split(" in ")[0] for line in said] == ["ready", "not served: b: model refused: too big"]


def test_a_deployment_of_another_machine_is_not_waited_for(readiness):
    said = []
    readiness({"a": "ready", "far": "unreachable"})
    assert Starting(URL, said.append).is_over({"a"})
    assert said[1:] == ["not served: far: unreachable"]


def test_all_refused_is_no_readiness(readiness):
    said = []
    readiness({"a": "loading failed: no memory"}, {"deployments": "no deployment is ready"})
    assert Starting(URL, said.append).is_over({"a"})
    assert "no model can be served" in said[0]
    assert not any(line.startswith("ready") for line in said)


def test_without_models_it_is_ready_when_the_gateway_is(readiness):
    said = []
    start = Starting(URL, said.append)
    readiness({}, {"deployments": "none", "epoch": "can't be read"})
    assert not start.is_over(set())
    readiness({}, {"deployments": "none"})
    assert start.is_over(set())
    assert "models add" in said[0]


def test_a_check_that_keeps_failing_is_told_once(readiness, seconds):
    said = []
    start = Starting(URL, said.append)
    readiness({"a": "ready", "b": "loading"}, {"disk": "nearly full", "examples": "not read yet"})
    for _ in range(30):
        assert not start.is_over({"a", "b"})
        seconds[0] += 1
    assert said == ["not ready yet: disk: nearly full"], "examples wait for models"
    readiness({"a": "ready", "b": "ready"}, {"examples": "not read yet"})
    for _ in range(30):
        assert not start.is_over({"a", "b"})
        seconds[0] += 1
    assert said[1:] == ["not ready yet: examples: not read yet"]


def test_models_that_are_slower_than_they_could_be_are_named_once_at_the_end(readiness):
    said = []
    slow = "three to five times slower: there is no C compiler"
    readiness({"a": "ready", "b": "ready"}, notes={"a": slow, "b": slow})
    assert Starting(URL, said.append).is_over({"a", "b"})
    assert said[1:] == [f"a, b: {slow}"]


def test_a_port_is_a_number_that_there_is():
    assert starting.port_problem("127.0.0.1", 80_000) == "80000 is no port: give a number from 1 to 65535"
