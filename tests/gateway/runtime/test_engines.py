"""Engines follow the catalogue; one that runs something outlives its deployment."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

from base.home import worker_endpoint
from gateway.runtime.engines import FIRST_SECONDS, RUNNING_TOKENS, Breaker, Engines, spec_of
from gateway.runtime.metrics import Metrics
from inference.curve import new_pair
from inference.types import Health
from routing.catalogue import DeploymentEntry, NodeEntry, ReplicaEntry
from tests.gateway.doubles import break_circuit


def entry(**fields):
    identifier = uuid4()
    defaults = {"id": identifier, "name": "one", "model": "fake", "backend": "fake", "source": "", "options": {}}
    return DeploymentEntry(**(defaults | {"replicas": (ReplicaEntry(identifier),)} | fields))


class Closable:
    """An engine of which only health and close are asked."""

    info = None

    def __init__(self, spec):
        self.spec = spec
        self.closed = False
        self.answer = Health(ready=True, running=2, waiting=1)

    async def health(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self):
        self.closed = True


def make_engines():
    metrics = Metrics()
    return Engines(metrics, opener=Closable), metrics


def test_worker_is_reached_at_its_nodes_socket_by_deployment_id():
    deployment = entry(backend="worker", options={"dtype": "float32"})
    spec = spec_of(deployment, ReplicaEntry(uuid4(), NodeEntry("n1")))
    assert (spec.deployment, spec.endpoint, spec.options) == (str(deployment.id), worker_endpoint("n1"), {})
    assert (spec.server_key, spec.secret_key) == ("", "")


def test_worker_of_another_machine_is_reached_at_its_address_with_both_keys(settings, tmp_path):
    settings.SLUICE_HOME, settings.SLUICE_GATEWAY_KEY = tmp_path, ""
    public, _ = new_pair()
    node = NodeEntry("far", "tcp://10.0.0.7:7411", public)
    spec = spec_of(entry(backend="worker"), ReplicaEntry(uuid4(), node))
    assert (spec.endpoint, spec.server_key) == ("tcp://10.0.0.7:7411", public)
    assert spec.secret_key == (tmp_path / "gateway.key").read_text()
    assert spec.secret_key not in repr(spec)
    assert (tmp_path / "gateway.key").stat().st_mode & 0o077 == 0


async def test_new_engine_takes_work_once_it_was_found_ready():
    engines, metrics = make_engines()
    one = entry()
    engines.follow([one])
    assert engines.usable(one.id) == "not heard from yet"
    assert not engines.any_ready()
    await engines.look()
    assert engines.usable(one.id) == ""
    assert engines.load(one.id) == 3 * RUNNING_TOKENS
    assert 'sluice_deployment_running{deployment="one",node=""} 2.0' in metrics.render().decode()


async def test_the_context_of_a_model_is_the_greatest_that_is_served():
    contexts = {"one": 512, "two": 2048, "three": None}

    class Announcing(Closable):
        @property
        def info(self):
            context = contexts[self.spec.deployment]
            return None if context is None else SimpleNamespace(max_context=context)

    engines = Engines(Metrics(), opener=Announcing)
    engines.follow([entry(name=name, model="m", options={}) for name in contexts])
    for open_one, name in zip(engines.entries(), contexts, strict=True):
        open_one.engine.spec = SimpleNamespace(deployment=name)
    assert engines.context_of("m") == 2048
    assert engines.context_of("unknown") is None


async def test_deployment_that_cannot_be_opened_leaves_the_others_alone():
    """Its options are an operator's JSON: a typing error there must not stop the gateway."""

    def opener(spec):
        if spec.options:
            raise TypeError("unknown option")
        return Closable(spec)

    engines = Engines(Metrics(), opener=opener)
    bad, good = entry(options={"x": 1}), entry()
    engines.follow([bad, good])
    await engines.look()
    assert engines.usable(bad.id) == "can't be opened: TypeError"
    assert engines.usable(good.id) == ""
    engines.follow([replace(bad, options={}), good])
    await engines.look()
    assert engines.usable(bad.id) == ""


async def test_each_replica_has_an_engine_and_a_health_of_its_own():
    engines, metrics = make_engines()
    near, far = (ReplicaEntry(uuid4(), NodeEntry(name)) for name in ("near", "far"))
    one = entry(backend="worker", replicas=(near, far))
    engines.follow([one])
    engines.get(far.id).answer = Health(ready=False, reason="loading")
    await engines.look()
    assert (engines.usable(near.id), engines.usable(far.id)) == ("", "loading")
    assert set(engines.of(one.id)) == {engines.get(near.id), engines.get(far.id)}
    assert 'sluice_deployment_ready{deployment="one",node="far"} 0.0' in metrics.render().decode()
    kept = engines.get(near.id)
    engines.follow([replace(one, replicas=(replace(near, weight=2),))])
    assert engines.get(near.id) is kept
    assert engines.get(far.id) is None
    assert 'node="far"' not in metrics.render().decode()


async def test_sick_engine_hides_no_other():
    engines, _ = make_engines()
    one, two = entry(), entry(name="two")
    engines.follow([one, two])
    engines.get(one.id).answer = RuntimeError("broken")
    await engines.look()
    assert engines.usable(one.id) == "broken"
    assert engines.usable(two.id) == ""


async def test_an_engine_that_comes_back_is_not_kept_out_for_what_failed_before():
    engines, _ = make_engines()
    engines.follow([entry()])
    await engines.look()
    [found] = engines.entries()
    break_circuit(found.breaker)
    await engines.look()  # it was ready all the while: nothing has changed
    assert "circuit open" in found.obstacle
    found.engine.answer = Health(ready=False, reason="its worker has gone")
    await engines.look()
    found.engine.answer = Health(ready=True)
    await engines.look()
    assert found.obstacle == ""


async def test_a_worker_that_followed_another_between_two_looks_is_not_kept_out_for_what_the_other_failed():
    engines, _ = make_engines()
    engines.follow([entry()])
    [found] = engines.entries()
    found.engine.answer = Health(ready=True, process="first")
    await engines.look()
    break_circuit(found.breaker)
    await engines.look()
    assert "circuit open" in found.obstacle
    found.engine.answer = Health(ready=True, process="second")
    await engines.look()
    assert found.obstacle == ""


async def test_a_circuit_is_shown_until_a_request_has_proved_the_engine():
    """A proof at a silent server takes minutes, and with few requests one is long in coming: no alert ever fired."""
    engines, metrics = make_engines()
    engines.follow([entry()])
    await engines.look()
    [found] = engines.entries()
    now = 0.0
    found.breaker = Breaker(lambda: now)

    async def shown():
        await engines.look()
        return metrics.registry.get_sample_value("sluice_deployment_circuit_open", {"deployment": "one", "node": ""})

    assert await shown() == 0
    break_circuit(found.breaker)
    assert await shown() == 1
    now = FIRST_SECONDS
    assert await shown() == 1
    ticket = found.breaker.enter(uuid4())
    assert await shown() == 1
    found.breaker.began(ticket)
    assert await shown() == 1
    found.breaker.succeeded(ticket)
    assert await shown() == 0


async def test_a_deployment_that_is_unfit_takes_no_work_however_well_its_engine_is():
    """A model whose rate card had no price was ready everywhere and answered 503."""
    engines, _ = make_engines()
    one = entry()
    engines.follow([one], {one.id: "no price"})
    await engines.look()
    assert engines.usable(one.id) == "no price"
    assert not engines.any_ready()
    engines.follow([one])
    assert engines.usable(one.id) == ""
    assert engines.any_ready()


async def test_unchanged_deployments_keep_their_engines_and_changed_ones_get_new():
    engines, _ = make_engines()
    one, two = entry(), entry(name="two")
    engines.follow([one, two])
    first, second = engines.get(one.id), engines.get(two.id)
    engines.follow([replace(one, source="elsewhere"), replace(two, options={"tokens": 3})])
    assert engines.get(one.id) is first
    assert engines.get(two.id) is not second
    await engines.look()
    assert second.closed
    assert not first.closed


async def test_engine_is_closed_when_nothing_runs_on_it_any_more():
    engines, metrics = make_engines()
    one = entry()
    engines.follow([one])
    engine = engines.get(one.id)
    flight = engines.enter(one.id, 10, uuid4())
    engines.follow([])
    await engines.look()
    assert engines.usable(one.id) == "not open"
    assert engines.of(one.id) == (engine,)
    assert not engine.closed
    flight.close()
    await engines.look()
    assert engine.closed
    assert engines.of(one.id) == ()
    assert 'deployment="one"' not in metrics.render().decode()
