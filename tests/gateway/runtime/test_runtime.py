"""The runtime over a real database: its snapshot follows the catalogue, its readiness tells the truth."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.utils import timezone

from base.ids import uuid7
from billing.models import RateCardVersion
from billing.services import cards
from gateway import bootstrap
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.runtime.catalogue import load_snapshot
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Reading
from gateway.runtime.requests import Stage
from gateway.runtime.runtime import Runtime
from routing.models import PublicModel
from routing.services.catalogue import add_model, remove_model
from tests.gateway.doubles import collect, make_intent, make_stand
from tests.gateway.world import RATES, in_database, make_world, opened, principal_of
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


async def moved(runtime, before):
    """Return when the runtime has the snapshot of a later epoch than `before`."""
    await until(lambda: runtime.catalogue.snapshot.epoch != before)


async def test_model_added_and_removed_is_followed(tmp_path):
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        before = runtime.catalogue.snapshot.epoch
        await in_database(
            add_model,
            name="other",
            kinds=["chat"],
            context_length=100,
            rate_card="fake-card",
            source="",
            backend="fake",
            options={"model": "other"},
        )
        await moved(runtime, before)
        await until(lambda: sum(entry.health.ready for entry in runtime.engines.entries()) >= 2)
        generation = await start_generation(runtime, principal, make_intent(model="other"), uuid7())
        await collect(generation)
        before = runtime.catalogue.snapshot.epoch
        await in_database(remove_model, "other")
        await moved(runtime, before)
        with pytest.raises(Refusal) as caught:
            await start_generation(runtime, principal, make_intent(model="other"), uuid7())
        assert caught.value.code == "model_not_found"


async def test_engines_are_looked_at_again_after_a_look_that_failed(tmp_path, monkeypatch):
    look, broken, again = Engines.look, asyncio.Event(), asyncio.Event()
    is_open = False

    async def broken_once(engines):
        if is_open and not broken.is_set():
            broken.set()
            raise RuntimeError("broken")
        await look(engines)
        if is_open:
            again.set()

    monkeypatch.setattr(Engines, "look", broken_once)
    monkeypatch.setattr(bootstrap, "HEALTH_INTERVAL", 0.01)
    await in_database(make_world)
    async with opened(tmp_path), asyncio.timeout(120):
        is_open = True
        await broken.wait()
        await again.wait()


async def test_price_change_applies_to_new_requests_and_not_to_running_ones(tmp_path):
    world = await in_database(make_world, tokens=4, hang_at=3)
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        engine = runtime.engines.get(world.deployment)
        running = await start_generation(runtime, principal, make_intent(), uuid7())
        await engine.hanging()
        before = runtime.catalogue.snapshot.epoch
        doubled = {0: {name: 2 * rate for name, rate in RATES[0].items()}}
        await in_database(cards.publish, "fake-card", doubled)
        await moved(runtime, before)
        engine.release()
        _, old, _ = await collect(running)
        _, new, _ = await collect(await start_generation(runtime, principal, make_intent(), uuid7()))
    assert (old.charge, new.charge) == (1160, 2320)


def test_snapshot_says_until_when_its_prices_hold():
    make_world()
    assert load_snapshot(3).good_until is None
    moment = timezone.now() + timedelta(hours=1)
    cards.publish("fake-card", RATES, moment)
    snapshot = load_snapshot(3)
    assert (snapshot.epoch, snapshot.good_until) == (3, moment)
    assert snapshot.prices["fake-card"].id == RateCardVersion.objects.order_by("effective_from").first().id
    assert "Max" in snapshot.plans_of("fake")
    assert "Free" not in snapshot.plans_of("fake")


@pytest.mark.parametrize("hours", [-3, 3])
def test_prices_are_published_and_in_force_by_the_database_s_clock(monkeypatch, hours):
    """A gateway's clock that was behind sold at the old prices, or at none; one that was ahead at those to come."""
    elsewhere(monkeypatch, hours)
    make_world()
    doubled = {0: {name: 2 * rate for name, rate in RATES[0].items()}}
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    cards.publish("fake-card", doubled, in_an_hour)
    snapshot = load_snapshot(3)
    assert snapshot.good_until == in_an_hour
    assert snapshot.prices["fake-card"].rates_for(0)["input"] == RATES[0]["input"]


@pytest.mark.parametrize("hours", [-3, 0, 3])
async def test_snapshot_is_old_once_the_database_says_so(monkeypatch, hours):
    moment = datetime.now(UTC)
    elsewhere(monkeypatch, hours)
    stand = await make_stand()
    stand.runtime.catalogue.snapshot = replace(stand.runtime.catalogue.snapshot, good_until=moment)
    stand.runtime.catalogue.epoch.publish(Reading(1, now=moment - timedelta(milliseconds=1)), 0.0)
    assert not stand.runtime.catalogue.is_old
    stand.runtime.catalogue.epoch.publish(Reading(1, now=moment), 0.0)
    assert stand.runtime.catalogue.is_old


def elsewhere(monkeypatch, hours):
    """Let this process' clock, and nobody else's, be wrong by some hours."""

    class Elsewhere(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(timezone, "datetime", Elsewhere)


def test_snapshot_says_which_deployments_have_no_price():
    made = make_world()
    assert load_snapshot(3).unfit() == {}
    PublicModel.objects.update(rate_card="gone")
    assert load_snapshot(3).unfit() == {made.deployment: "no price of rate card 'gone' is in force"}


async def test_admission_refuses_while_the_snapshot_is_older_than_the_epoch(monkeypatch):
    monkeypatch.setattr("gateway.runtime.catalogue.SNAPSHOT_SECONDS", 0.01)
    stand = await make_stand()
    stand.runtime.catalogue.epoch.publish(Reading(2), 0.0)
    with pytest.raises(Refusal) as caught:
        await start_generation(stand.runtime, stand.principal, make_intent(), uuid7())
    assert (caught.value.status, caught.value.code) == (503, "catalogue_unavailable")
    assert len(stand.runtime.requests.gate) == 0


async def test_readiness_names_what_is_wrong(tmp_path, monkeypatch):
    await in_database(make_world, ready=False)
    async with opened(tmp_path) as runtime:
        checks = await runtime.readiness()
        assert {name for name, problem in checks.items() if problem} == {"deployments"}
        await in_database(drop_a_trigger)
        runtime.requests.stage = Stage.DRAINING
        runtime._look._good_until = 0.0  # what was seen a second ago
        monkeypatch.setattr("base.home.LEAST_FREE", 10**18)
        checks = await runtime.readiness()
        assert {name for name, problem in checks.items() if problem} == {"deployments", "server", "triggers", "disk"}
        await in_database(restore_triggers)


def drop_a_trigger():
    from billing import triggers

    with connection.cursor() as cursor:
        [name, *_] = [name for spec in triggers.GUARDED for name, _ in spec.statements(connection.vendor)]
        table = next(
            spec.table
            for spec in triggers.GUARDED
            if name in [found for found, _ in spec.statements(connection.vendor)]
        )
        on = f" ON {table}" if connection.vendor == "postgresql" else ""
        cursor.execute(f"DROP TRIGGER {name}{on}")


def restore_triggers():
    from billing import triggers

    triggers.install(connection)


def test_operators_are_told_why_a_model_is_refused_or_slower():
    def entry(name, obstacle="", detail="", **details):
        engine = SimpleNamespace(info=SimpleNamespace(details=details))
        return SimpleNamespace(
            deployment=SimpleNamespace(name=name),
            obstacle=obstacle,
            health=SimpleNamespace(detail=detail),
            engine=engine,
        )

    entries = [entry("refused", "model refused", "no room"), entry("slow", slower="no compiler"), entry("quick")]
    entries[0].engine.info = None
    runtime = SimpleNamespace(engines=SimpleNamespace(entries=lambda: entries), rates=SimpleNamespace(trouble=""))
    assert Runtime.deployments(runtime) == {"refused": "model refused: no room", "slow": "ready", "quick": "ready"}
    assert Runtime.notes(runtime, for_operators=True) == {"slow": "three to five times slower: no compiler"}
    assert Runtime.notes(runtime, for_operators=False) == {}


async def test_gateway_that_lost_redis_is_ready_and_says_so(redis_server, settings, tmp_path):
    settings.REDIS_URL = redis_server.url
    settings.SLUICE_REDIS_SECONDS = 5.0
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        assert runtime.notes(for_operators=True) == {}
        principal = await principal_of(runtime, world)
        redis_server.kill()
        await collect(await start_generation(runtime, principal, make_intent(), uuid7()))
        assert "share" in runtime.notes(for_operators=False)["limits"]
        assert not any((await runtime.readiness()).values())
        shown = runtime.metrics.registry.get_sample_value
        assert (shown("sluice_limits_shared"), shown("sluice_redis_losses_total")) == (0, 1)
