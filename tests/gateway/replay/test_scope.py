"""Whose keys are whose, and for how long."""

from __future__ import annotations

import zlib
from datetime import timedelta

import pytest
from django.utils import timezone

from billing import clock
from gateway.models import APIKey, KeptAnswer, Project
from gateway.secrets.sealing import unseal_bytes
from gateway.services import keys
from gateway.services.purge import purge
from tests.gateway.edge.client import assert_error
from tests.gateway.replay.conftest import chat
from tests.gateway.world import assert_books, in_database, make_world

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


async def test_another_tenant_has_the_same_key_for_itself(gateway):
    other = await in_database(make_world)
    async with gateway(tokens=3) as bench:
        mine = await bench.ask(chat()).finished()
        others = await bench.ask(chat("another"), secret=other.secret).finished()
        assert others.status == 200
        assert others.json()["id"] != mine.json()["id"]
        assert "idempotency-replayed" not in others.headers


async def test_another_key_of_the_tenant_gets_the_same_answer(gateway):
    async with gateway(tokens=3) as bench:
        _, secret = await in_database(
            keys.create_key, tenant=bench.world.tenant, project=bench.world.project, name="rotated"
        )
        mine = await bench.ask(chat()).finished()
        again = await bench.ask(chat(), secret=secret).finished()
        assert again.body == mine.body
        _, secret = await in_database(
            keys.create_key, tenant=bench.world.tenant, project=bench.world.project, name="n", scopes=["management"]
        )
        assert_error(await bench.ask(chat(), secret=secret).finished(), 403, "insufficient_scope")
    await in_database(assert_books, bench.world, records=1)


async def test_another_project_or_a_key_for_other_models_gets_nothing_of_it(gateway):
    """A key that may not use a model, and a project that can't see what an answer goes on from, would read it free."""

    def make_others():
        project = Project(tenant=bench.world.tenant, name="Other")
        project.save(force_insert=True)
        _, strange = keys.create_key(tenant=bench.world.tenant, project=project, name="strange")
        narrow, secret = keys.create_key(tenant=bench.world.tenant, project=bench.world.project, name="narrow")
        APIKey.objects.unscoped().filter(pk=narrow.pk).update(allowed_models=["another"])
        return strange, secret

    async with gateway(tokens=3) as bench:
        mine = await bench.ask(chat()).finished()
        strange, narrow = await in_database(make_others)
        others = await bench.ask(chat(), secret=strange).finished()
        assert (others.status, others.headers.get("idempotency-replayed")) == (200, None)
        assert others.json()["id"] != mine.json()["id"]
        assert_error(await bench.ask(chat(), secret=narrow).finished(), 422, "idempotency_key_reused")
    await in_database(assert_books, bench.world, records=2)


async def test_key_is_free_after_a_day_by_the_databases_clock(gateway, monkeypatch):
    async with gateway(tokens=3) as bench:
        first = await bench.ask(chat("one")).finished()
        moved = {
            "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now', '+23 hours')",
            "postgresql": "SELECT clock_timestamp() + interval '23 hours'",
        }
        monkeypatch.setattr(clock, "STATEMENTS", moved)
        assert (await bench.ask(chat("one")).finished()).body == first.body
        moved = {name: statement.replace("23", "25") for name, statement in moved.items()}
        monkeypatch.setattr(clock, "STATEMENTS", moved)
        other = await bench.ask(chat("two")).finished()
        assert other.status == 200
        assert "idempotency-replayed" not in other.headers
        assert_error(await bench.ask(chat("one")).finished(), 422, "idempotency_key_reused")


async def test_purge_deletes_what_is_over_and_no_prompt_was_ever_stored(gateway):
    def stored():
        return list(KeptAnswer.objects.unscoped().values())

    async with gateway(tokens=3) as bench:
        answer = await bench.ask(chat("my secret words")).finished()
        [row] = await in_database(stored)
        told = zlib.decompress(unseal_bytes(bytes(row["body"])))
        assert told == answer.body
        assert b"my secret words" not in told
        assert "my secret words" not in str({name: value for name, value in row.items() if name != "body"})
        with pytest.raises(zlib.error):  # neither the database nor a backup of it says what was answered
            zlib.decompress(bytes(row["body"]))
        await in_database(purge, timezone.now() + timedelta(hours=23))
        assert len(await in_database(stored)) == 1
        await in_database(purge, timezone.now() + timedelta(hours=25))
        assert await in_database(stored) == []
