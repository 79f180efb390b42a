from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.urls import reverse

from gateway.models import User
from gateway.runtime.engine_entry import EngineEntry
from gateway.runtime.live import Live, live_of
from inference.types import Health
from routing.catalogue import ReplicaEntry
from routing.models import Deployment, PublicModel

pytestmark = pytest.mark.django_db


def runtime_of(**healths):
    """As much of a runtime as pages look at."""
    entries = [
        EngineEntry(
            SimpleNamespace(id=identifier),
            ReplicaEntry(identifier),
            spec=None,
            engine=SimpleNamespace(info=None),
            health=health,
        )
        for identifier, health in healths.values()
    ]
    return SimpleNamespace(engines=SimpleNamespace(entries=lambda: tuple(entries)))


def test_without_a_gateway_nothing_is_known(rf):
    live = live_of(rf.get("/"))
    assert live.deployment_states() is None
    assert live.usable(uuid4()) == ""
    assert live.load(uuid4()) == 0
    assert live.catalogue().models == {}


def test_states_are_the_engines_last_health():
    identifier = uuid4()
    live = Live(runtime_of(a=(identifier, Health(ready=False, reason="loading", running=1, waiting=2, kv_used=0.5))))
    state = live.deployment_states()[identifier]
    assert (state.is_ready, state.reason, state.running, state.waiting, state.kv_used) == (False, "loading", 1, 2, 0.5)


def test_admin_shows_live_state(client, monkeypatch):
    client.force_login(User.objects.create_superuser("r@example.com"), "django.contrib.auth.backends.ModelBackend")
    model = PublicModel.objects.create(name="m", context_length=1, rate_card="x")
    up, down, *_ = (
        Deployment.objects.create(name=name, model=model, is_active=name != "off")
        for name in ("up", "down", "gone", "off")
    )
    runtime = runtime_of(
        up=(up.id, Health(ready=True, running=3, waiting=4, kv_used=0.25)),
        down=(down.id, Health(ready=False, reason="worker lost")),
    )
    monkeypatch.setattr("gateway.admin.deployments.live_of", lambda _: Live(runtime))
    rows = client.get(reverse("admin:routing_deployment_changelist")).content.decode().split("data-row")
    text = {name: next(row for row in rows if f">{name}</a>" in row) for name in ("up", "down", "gone", "off")}
    assert "3 / 4" in text["up"]
    assert "25%" in text["up"]
    assert "worker lost" in text["down"]
    assert "not open" in text["gone"]
    assert "not ready" not in text["off"]
