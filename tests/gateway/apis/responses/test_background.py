"""Responses in the background: the unmodified SDK, a real ledger and the fake engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import openai
import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.jobs import sweep_job
from billing.services.sweeps import CHUNK
from gateway.apis.responses import rows, runs
from gateway.apis.responses.models import StoredResponse
from gateway.durable import answers
from gateway.durable.models import KeptAnswer
from gateway.durable.replays import Replays, _too_much_kept
from tests.gateway.apis.responses.test_stored import refused
from tests.gateway.apis.test_sdk import COST, stage
from tests.gateway.world import assert_books, engine_of, in_database
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

ENDED = {"completed", "incomplete", "failed", "cancelled"}
KINDS = ["response.created", "response.queued", "response.in_progress"]


def ask(client, **given):
    return client.responses.create(**{"model": "fake", "input": "Hi", "background": True, "store": True} | given)


async def ended(client, identifier):
    """The response once it has ended."""
    async with asyncio.timeout(120):
        while (response := await client.responses.retrieve(identifier)).status not in ENDED:  # noqa: ASYNC110 - by polls
            await asyncio.sleep(0.01)
    return response


async def read(stream, *, count=None):
    events = []
    async for event in stream:
        events.append(event)
        if len(events) == count:
            break
    await stream.close()
    return events


async def test_it_needs_no_client(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        made = await ask(client)
        assert (made.status, made.background, made.store, made.output) == ("queued", True, True, [])
        last = await ended(client, made.id)
        assert (last.id, last.status, last.background, last.created_at) == (made.id, "completed", True, made.created_at)
        assert last.output_text == "one two three"
        assert last.usage.credits_micro == COST
        after = await client.responses.create(model="fake", input="And?", previous_response_id=made.id)
        assert after.status == "completed"
    await in_database(assert_books, world, records=2)


async def test_its_events_are_read_from_any_on_while_it_runs_and_after(tmp_path):
    async with stage(tmp_path, hang_at=2) as (world, runtime, client):
        begun = await read(await ask(client, stream=True), count=6)  # and the client is gone
        assert [event.type for event in begun][:3] == KINDS
        identifier = begun[0].response.id
        assert (await client.responses.retrieve(identifier)).status == "in_progress"
        following = asyncio.ensure_future(
            read(await client.responses.retrieve(identifier, stream=True, starting_after=begun[-1].sequence_number))
        )
        engine_of(runtime, world).release()
        rest = await following
        await ended(client, identifier)
        again = await read(await client.responses.retrieve(identifier, stream=True, starting_after=2))
        whole = await read(await client.responses.retrieve(identifier, stream=True))
        assert [event.sequence_number for event in whole] == list(range(len(whole)))
        assert [event.to_dict() for event in begun + rest] == [event.to_dict() for event in whole]
        assert again == whole[3:]
        assert whole[-1].response.to_dict() == (await client.responses.retrieve(identifier)).to_dict()
    await in_database(assert_books, world, records=1)


async def test_its_end_is_told_when_its_events_are_gone(tmp_path):
    async with stage(tmp_path) as (_world, _runtime, client):
        made = await ask(client)
        last = await ended(client, made.id)
        await in_database(KeptAnswer.objects.unscoped().all().delete)
        [event] = await read(await client.responses.retrieve(made.id, stream=True, starting_after=4))
        assert (event.type, event.sequence_number) == ("response.completed", 5)
        assert event.response.to_dict() == last.to_dict()


async def test_it_is_cancelled_once(tmp_path):
    async with stage(tmp_path, hang_at=2) as (world, _runtime, client):
        made = await ask(client, stream=True)
        await read(made, count=6)
        identifier = next(iter(_runtime.requests.background))
        name = f"resp_{identifier.hex}"
        cancelled = await client.responses.cancel(name)
        assert (cancelled.status, cancelled.output_text.split()[:1]) == ("cancelled", ["one"])
        assert (await client.responses.cancel(name)).to_dict() == cancelled.to_dict()
        events = await read(await client.responses.retrieve(name, stream=True))
        assert events[-1].response.status == "cancelled"
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == cancelled.usage.credits_micro > 0


async def test_it_is_cancelled_before_it_begins(tmp_path):
    async with stage(tmp_path, hang_at=1) as (world, runtime, client):
        made = await ask(client)
        await until(lambda: runtime.requests.live)
        cancelled = await client.responses.cancel(made.id)
        assert (cancelled.status, cancelled.output) == ("cancelled", [])
        [event] = await read(await client.responses.retrieve(made.id, stream=True, starting_after=1))
        assert (event.type, event.response.status) == ("response.incomplete", "cancelled")
    await in_database(assert_books, world, records=1)


async def test_it_is_cancelled_in_the_moment_in_which_it_begins(tmp_path, monkeypatch):
    start = runs.start_generation

    async def cancelled_then(runtime, *given):
        generation = await start(runtime, *given)
        [run] = runtime.requests.background.values()
        asyncio.get_running_loop().call_soon(run.cancel)  # between the generation and whoever waits for it
        return generation

    monkeypatch.setattr(runs, "start_generation", cancelled_then)
    async with stage(tmp_path, hang_at=2) as (world, _runtime, client):
        made = await ask(client)
        assert (await ended(client, made.id)).status == "cancelled"
    await in_database(assert_books, world, records=1)


async def test_it_is_cancelled_from_another_gateway(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "LOOK_SECONDS", 0.01)
    async with stage(tmp_path, hang_at=2) as (_world, runtime, client):
        made = await ask(client)
        while not (here := dict(runtime.requests.background)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        runtime.requests.background.clear()  # as another gateway sees it
        cancelling = asyncio.ensure_future(client.responses.cancel(made.id))
        asked = KeptAnswer.objects.unscoped().filter(is_cancelling=True)
        while not await in_database(asked.all().exists):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        runtime.requests.background.update(here)
        await runs.cancel_as_asked(runtime)
        assert (await cancelling).status == "cancelled"


async def test_it_is_cancelled_in_the_moment_in_which_it_ends(tmp_path, monkeypatch):
    store = answers.store

    def cancelled_then(*given):
        [run] = runtime.requests.background.values()
        loop.call_soon_threadsafe(run.cancel)
        return store(*given)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(answers, "store", cancelled_then)
    async with stage(tmp_path) as (world, runtime, client):
        made = await ask(client)
        assert (await ended(client, made.id)).status == "completed"
        assert (await client.responses.cancel(made.id)).status == "completed"
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == COST


async def test_one_that_is_more_than_may_be_kept_ends_with_what_there_is(tmp_path, monkeypatch):
    """It was in progress for ever."""
    taken_by = Replays._taken_by

    def full_at_the_first_delta(self, tenant):
        taken, take = taken_by(self, tenant)
        room = [take, take]  # that it is queued, and that it begins

        def take_two(count):
            if not room:
                raise _too_much_kept()
            room.pop()(count)

        return taken, take_two

    monkeypatch.setattr(Replays, "_taken_by", full_at_the_first_delta)
    async with stage(tmp_path, hang_at=2) as (world, _runtime, client):
        made = await ask(client)
        last = await ended(client, made.id)
        assert (last.status, last.incomplete_details.reason) == ("incomplete", "too_much_kept")
        assert last.output_text == "one"
        with pytest.raises(openai.APIError, match="too much memory"):
            await read(await client.responses.retrieve(made.id, stream=True))
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == last.usage.credits_micro > 0


async def test_what_it_cant_be_made_for_is_its_error(tmp_path):
    async with stage(tmp_path, credit=0) as (_world, _runtime, client):
        made = await ask(client)
        failed = await ended(client, made.id)
        assert (failed.status, failed.error.code) == ("failed", "credit_balance_exhausted")
        events = await read(await client.responses.retrieve(made.id, stream=True))
        assert [event.type for event in events] == [*KINDS[:2], "response.failed"]
        going_on = client.responses.create(model="fake", input="Hi", previous_response_id=made.id)
        assert await refused(going_on) == "previous_response_unfinished"


async def test_one_that_we_broke_fails_and_costs_nothing(tmp_path):
    async with stage(tmp_path, error_at=2) as (world, _runtime, client):
        made = await ask(client)
        failed = await ended(client, made.id)
        assert failed.status == "failed"
        assert failed.usage.credits_micro == 0
        [event] = await read(await client.responses.retrieve(made.id, stream=True, starting_after=0))
        assert (event.type, event.sequence_number) == ("response.failed", 1)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 0


async def test_one_whose_gateway_ended_fails(tmp_path):
    async with stage(tmp_path, hang_at=1) as (_world, runtime, client):
        made = await ask(client)
        await until(lambda: runtime.requests.background)
        past = timezone.now() - timedelta(hours=1)
        await in_database(KeptAnswer.objects.unscoped().update, lease_until=past)  # nobody renews it any more
        await in_database(StoredResponse.objects.unscoped().update, created_at=past)
        await in_database(rows.losses().turn)
        failed = await client.responses.retrieve(made.id)
        assert (failed.status, failed.error.code) == ("failed", "response_lost")
        for run in list(runtime.requests.background.values()):
            run.cancel()
            await run.ended()
        assert (await client.responses.retrieve(made.id)).to_dict() == failed.to_dict()
        assert await in_database(rows.losses().turn) == 0


@pytest.mark.parametrize("minutes", [5, -5])
def test_one_that_is_about_to_begin_isnt_lost_by_the_clock_of_the_jobs(acme, monkeypatch, minutes):
    """It stands there before its run is claimed: failed in that moment, it would run all the same, and be charged."""
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(minutes=minutes))
    owner = rows.Owner(acme.tenant.id, acme.project.id)
    rows.add(owner, uuid7(), status="queued", given=b"[]", body=b"{}", is_background=True)
    assert rows.losses().turn() == 0


def test_one_that_is_lost_fails_however_many_older_ones_run(acme):
    owner, past = rows.Owner(acme.tenant.id, acme.project.id), timezone.now() - timedelta(hours=1)
    *going, lost = [uuid7() for _ in range(CHUNK + 2)]
    for identifier in (*going, lost):
        rows.add(owner, identifier, status="in_progress", given=b"[]", body=b"{}", is_background=True)
    StoredResponse.objects.unscoped().update(created_at=past)
    for identifier in going:
        KeptAnswer.objects.create(
            tenant=acme.tenant,
            key=identifier.hex,
            digest=b"",
            run=identifier,
            owner=uuid7(),
            lease_until=timezone.now() + timedelta(hours=1),
            expires_at=timezone.now() + timedelta(hours=1),
        )
    sweep_job("losses", rows.losses(), every_s=30).run()
    assert [row.id for row in StoredResponse.objects.unscoped().filter(status="failed")] == [lost]


def test_one_that_is_deleted_while_it_is_found_lost_is_none(acme, monkeypatch):
    owner, identifier = rows.Owner(acme.tenant.id, acme.project.id), uuid7()
    rows.add(owner, identifier, status="queued", given=b"[]", body=b"{}", is_background=True)
    row = rows.find(owner, identifier)
    change = rows.change

    def deleted_before(*args, **options):
        StoredResponse.objects.unscoped().filter(id=identifier).delete()
        change(*args, **options)

    monkeypatch.setattr(rows, "change", deleted_before)
    assert not rows.fail_if_lost(row)


async def test_what_is_deleted_keeps_nothing(tmp_path):
    async with stage(tmp_path, hang_at=1) as (world, runtime, client):
        engine = engine_of(runtime, world)
        made = await ask(client)
        await until(lambda: runtime.requests.background)
        [run] = runtime.requests.background.values()
        await client.responses.delete(made.id)
        engine.release()
        await run.ended()
        ended_before = await ask(client)
        await ended(client, ended_before.id)
        await client.responses.delete(ended_before.id)
        key = {"extra_headers": {"Idempotency-Key": "k"}}
        kept = await client.responses.create(model="fake", input="Hi", store=True, **key)
        await client.responses.delete(kept.id)
        again = client.responses.create(model="fake", input="Hi", store=True, **key)
        assert await refused(again, openai.NotFoundError) == "response_not_found"

        def told():
            from gateway.durable.answers import read

            found = [read(row.run) for row in KeptAnswer.objects.unscoped()]
            return [stored.head.status for stored in found], b"".join(stored.body for stored in found)

        statuses, text = await in_database(told)
        assert statuses == [404] * 3
        assert b"one" not in text


async def test_what_contradicts_it_is_refused(tmp_path):
    async with stage(tmp_path) as (_world, _runtime, client):
        assert await refused(ask(client, store=False)) == "invalid_value"
        stored = await client.responses.create(model="fake", input="Hi", store=True)
        assert await refused(client.responses.cancel(stored.id)) == "not_in_background"
        assert await refused(client.responses.retrieve(stored.id, stream=True)) == "invalid_value"
        after = client.responses.retrieve(stored.id, extra_query={"starting_after": 1})
        assert await refused(after) == "invalid_value"
