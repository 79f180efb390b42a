"""Whose keys are whose, and for how long."""

from __future__ import annotations

import zlib
from datetime import timedelta
from functools import partial

import pytest
from django.test import Client
from django.utils import timezone

from base import clock
from base.sealing import unseal_bytes
from gateway.durable.models import KeptAnswer
from operation.jobs.purge import purge
from tenancy.models import APIKey, Project
from tenancy.services import keys
from tests.gateway.apis.client import Exchange, assert_error
from tests.gateway.apis.files.test_files import TYPE, form
from tests.gateway.durable.conftest import chat
from tests.gateway.durable.test_ends import SlowReader
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


async def test_what_an_upload_made_is_its_projects_too(gateway):
    """Another project's same upload under the same key gave it a file that it can't read."""

    def make_other():
        project = Project(tenant=bench.world.tenant, name="Other")
        project.save(force_insert=True)
        return keys.create_key(tenant=bench.world.tenant, project=project, name="strange")[1]

    def upload(secret):
        headers = TYPE | {"idempotency-key": "k1"}
        return Exchange(bench.app, "POST", "/v1/files", body=form(), headers=headers, key=secret).finished()

    async with gateway() as bench:
        strange = await in_database(make_other)
        mine, again, others = [await upload(secret) for secret in (bench.world.secret,) * 2 + (strange,)]
        assert (mine.status, again.body, again.headers["idempotency-replayed"]) == (200, mine.body, "true")
        assert (others.status, others.headers.get("idempotency-replayed")) == (200, None)
        assert others.json()["id"] != mine.json()["id"]
        place = f"/v1/files/{others.json()['id']}"
        shown = [await Exchange(bench.app, "GET", place, key=one).finished() for one in (strange, bench.world.secret)]
        assert [answer.status for answer in shown] == [200, 404]


async def test_a_key_of_the_management_api_is_another_one(gateway):
    """What one API made would be the other's answer, or keep it from being made."""

    def make():
        headers = {"authorization": f"Bearer {manager}", "idempotency-key": "k1"}
        return Client().post("/api/v1/projects/", {"name": "ci"}, content_type="application/json", headers=headers)

    async with gateway(tokens=3) as bench:
        terms = {"tenant": bench.world.tenant, "project": bench.world.project, "name": "all", "scopes": keys.SCOPES}
        _, manager = await in_database(partial(keys.create_key, **terms))
        made = await in_database(make)
        answer = await bench.ask(chat(), secret=manager).finished()
        assert (made.status_code, answer.status) == (201, 200)
        assert "idempotency-replayed" not in answer.headers
        assert (await in_database(make)).content == made.content
        assert (await bench.ask(chat(), secret=manager).finished()).body == answer.body
    await in_database(assert_books, bench.world, records=1)


async def test_what_was_kept_under_a_secret_that_is_gone_is_never_made_again(gateway, settings):
    settings.SLUICE_CREDENTIAL_SECRET, settings.SLUICE_CREDENTIAL_FALLBACKS = "one" * 16, []
    async with gateway(tokens=3) as bench:
        first = await bench.ask(chat()).finished()
        settings.SLUICE_CREDENTIAL_SECRET = "two" * 16
        lost = await bench.ask(chat()).finished()
        assert_error(lost, 503, "answer_unreadable")
        assert lost.headers["x-should-retry"] == "false"
        assert_error(await bench.ask(chat("two")).finished(), 422, "idempotency_key_reused")
        settings.SLUICE_CREDENTIAL_FALLBACKS = ["one" * 16]
        assert (await bench.ask(chat()).finished()).body == first.body
    await in_database(assert_books, bench.world, records=1)


@pytest.mark.parametrize("key", ["x" * 255, "~", "a b", "%00", "';--"])
async def test_every_key_that_is_one_is_kept(gateway, key):
    async with gateway(tokens=3) as bench:
        first, again = [await bench.ask(chat(), key=key).finished() for _ in range(2)]
        assert (first.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")
    await in_database(assert_books, bench.world, records=1)


async def test_who_reads_what_is_purged_reads_it_to_the_end(gateway):
    async with gateway(tokens=20) as bench:
        whole = await bench.ask(chat(stream=True)).finished()
        reader = SlowReader(bench)
        await reader.stopped.wait()
        await in_database(purge, timezone.now() + timedelta(hours=25))
        reader.go_on.set()
        await reader.task
        assert reader.exchange.answer.body == whole.body
    await in_database(assert_books, bench.world, records=1)
