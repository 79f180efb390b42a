"""When a start is over, and what is told of it."""

import pytest

from operation.serve import starting
from operation.serve.starting import Starting

URL = "http://127.0.0.1:1"


@pytest.fixture
def readiness(monkeypatch):
    """What ``/readyz`` answers, to be changed by the test: states and failing checks, or None."""
    told = {"answer": None}
    monkeypatch.setattr(starting, "_readiness", lambda _: told["answer"])
    return told


def test_nobody_answers_nothing_is_told(readiness):
    said = []
    assert not Starting(URL, said.append, is_detailed=True).is_over({"a"})
    assert said == []


def test_ready_comes_when_all_is_loaded_or_refused_and_not_before(readiness):
    said = []
    start = Starting(URL, said.append, is_detailed=True)
    for states in (
        {"a": "not heard from yet", "b": "not heard from yet"},
        {"a": "loading", "b": "not heard from yet"},
        {"a": "ready", "b": "loading"},
        {"a": "ready", "b": "the worker does not serve this deployment"},
    ):
        readiness["answer"] = (states, set())
        assert not start.is_over({"a", "b"})
    readiness["answer"] = ({"a": "ready", "b": "model refused: too big"}, set())
    assert start.is_over({"a", "b"})
    assert [" ".join(line.split()[:2]) for line in said] == [
        "a loading",
        "a ready",
        "b loading",
        "ready in",
        "not served:",
    ]
    assert said[-1] == "not served: b: model refused: too big"


def test_a_deployment_of_another_machine_is_not_waited_for(readiness):
    said = []
    readiness["answer"] = ({"a": "ready", "far": "unreachable"}, set())
    assert Starting(URL, said.append, is_detailed=False).is_over({"a"})
    assert said[1:] == ["not served: far: unreachable"]


def test_all_refused_is_no_readiness(readiness):
    said = []
    readiness["answer"] = ({"a": "loading failed: no memory"}, {"deployments"})
    assert Starting(URL, said.append, is_detailed=False).is_over({"a"})
    assert "no model can be served" in said[0]
    assert not any(line.startswith("ready") for line in said)


def test_without_models_it_is_ready_when_the_gateway_is(readiness):
    said = []
    start = Starting(URL, said.append, is_detailed=False)
    readiness["answer"] = ({}, {"deployments", "epoch"})
    assert not start.is_over(set())
    readiness["answer"] = ({}, {"deployments"})
    assert start.is_over(set())
    assert "models add" in said[0]
