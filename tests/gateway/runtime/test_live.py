import re
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.urls import reverse

from gateway.runtime.data_plane import Live, live_of
from gateway.runtime.engines import FIRST_SECONDS, Breaker, EngineEntry
from inference.types import EngineInfo, Health, Histogram, Kind, Work
from routing.catalogue import NodeEntry, ReplicaEntry
from routing.models import Deployment, PublicModel
from tenancy.models import User
from tests.gateway.doubles import break_circuit

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


def test_admin_shows_a_circuit_that_waits_for_its_proof(client, monkeypatch):
    """It was plainly ready while the next request was its trial."""
    client.force_login(User.objects.create_superuser("r@example.com"), "django.contrib.auth.backends.ModelBackend")
    model = PublicModel.objects.create(name="m", context_length=1, rate_card="x")
    row, now = Deployment.objects.create(name="tried", model=model), 0.0
    runtime = runtime_of(tried=(row.id, Health(ready=True)))
    [entry] = runtime.engines.entries()
    entry.breaker = Breaker(lambda: now)
    break_circuit(entry.breaker)
    now = FIRST_SECONDS
    monkeypatch.setattr("control.admin.deployments.live_of", lambda _: Live(runtime))
    for page in (
        reverse("admin:routing_deployment_changelist"),
        reverse("admin:routing_deployment_change", args=[row.id]),
    ):
        assert "circuit half-open after 3 failures: the next request proves it" in client.get(page).content.decode()
    assert Live(runtime).deployment_states()[row.id].is_ready


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
    monkeypatch.setattr("control.admin.deployments.live_of", lambda _: Live(runtime))
    rows = client.get(reverse("admin:routing_deployment_changelist")).content.decode().split("<tr>")
    text = {name: next(row for row in rows if f">{name}</a>" in row) for name in ("up", "down", "gone", "off")}
    assert "3 / 4" in text["up"]
    assert "25%" in text["up"]
    assert "worker lost" in text["down"]
    assert "not open" in text["gone"]
    assert "not ready" not in text["off"]
    assert "off" in text["off"]


def test_admin_shows_what_each_engine_says_of_itself(client, monkeypatch):
    client.force_login(User.objects.create_superuser("r@example.com"), "django.contrib.auth.backends.ModelBackend")
    model = PublicModel.objects.create(name="m", context_length=1, rate_card="x")
    one, other = (Deployment.objects.create(name=name, model=model) for name in ("one", "other"))
    runtime = runtime_of(
        first=(one.id, Health(ready=True)),
        second=(one.id, Health(ready=False, reason="model refused", detail="/models/<b>m</b> is not there")),
        third=(other.id, Health(ready=True)),
    )
    info = EngineInfo("d", "m", frozenset({Kind.CHAT}), 4096, 4096, details={"dtype": "bfloat16", "tier": "C, exact"})
    first, second, third = runtime.engines.entries()
    first.engine.info, third.engine.info = info, replace(info, details={"dtype": "of another"})
    second.replica = replace(second.replica, node=NodeEntry("far"))
    monkeypatch.setattr("control.admin.deployments.live_of", lambda _: Live(runtime))
    page = client.get(reverse("admin:routing_deployment_change", args=[one.pk])).content.decode()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "the server: ready context 4,096 tokens dtype bfloat16 tier C, exact" in text
    assert "far: model refused /models/&lt;b&gt;m&lt;/b&gt; is not there" in text
    assert "of another" not in text
    assert "Engines, as" not in client.get(reverse("admin:routing_deployment_add")).content.decode()


def test_only_a_workers_deployment_has_rows_for_replicas(client):
    client.force_login(User.objects.create_superuser("r@example.com"), "django.contrib.auth.backends.ModelBackend")
    model = PublicModel.objects.create(name="m", context_length=1, rate_card="x")
    for backend, has_rows in (("worker", True), ("openai", False)):
        made = Deployment.objects.create(name=backend, model=model, backend=backend, source="http://x")
        page = client.get(reverse("admin:routing_deployment_change", args=[made.pk])).content.decode()
        assert ("replicas-TOTAL_FORMS" in page) is has_rows


def test_admin_says_what_an_engine_cost_and_saved(client, monkeypatch, acme):
    client.force_login(User.objects.create_superuser("r@example.com"), "django.contrib.auth.backends.ModelBackend")
    model = PublicModel.objects.create(name="m", context_length=1, rate_card="x")
    ours, idle, theirs = (Deployment.objects.create(name=name, model=model) for name in ("ours", "idle", "theirs"))
    work = Work(
        steps=100,
        rows=640,
        seconds=10.0,
        prefill_seconds=4.0,
        prompt_tokens=2000,
        cached_tokens=6000,
        output_tokens=600,
        preemptions={"blocks": 3, "fairness": 2},
        tenants={str(acme.tenant.id): 7.5, "gone": 2.5},
        queued=Histogram((9, 1), 0.01),
    )
    runtime = runtime_of(
        ours=(ours.id, Health(ready=True, kv_used=0.5, kv_cached=0.25, work=work)),
        idle=(idle.id, Health(ready=True, work=Work())),
        theirs=(theirs.id, Health(ready=True)),
    )
    monkeypatch.setattr("control.admin.deployments.live_of", lambda _: Live(runtime))
    pages = [
        client.get(reverse("admin:routing_deployment_change", args=[one.id])).content.decode()
        for one in (ours, idle, theirs)
    ]
    for said in (
        "50% is held by requests, 25% keeps prompts for reuse and 25% is empty",
        "3 for want of memory, 2 since another tenant had less than its share",
        "6.4 requests on average and takes 100.0 ms",
        "100 tokens a second of decoding and read 500 prompt tokens a second of prefill",
        "Half of the requests waited at most 1 ms for their first step, and all but one in a hundred at most 1.5 ms.",
        "75% were taken from the cache instead of being computed: about 12.0 s of this device saved",
        acme.tenant.name,
        "7.5 s",
        "75%",
    ):
        assert said in pages[0]
    assert "Since the engine was loaded" not in pages[1] + pages[2]
