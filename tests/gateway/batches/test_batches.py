"""Batches through a real server, ledger and jobs: each line answered once, charged once, in its order."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from base import clock
from base.ids import uuid7
from billing.models import UsageRecord
from gateway.apis.batches.running import Lines
from gateway.apis.endpoints import POSTS
from gateway.batches.claims import Task
from gateway.batches.intake import take_in
from gateway.batches.models import BatchLine
from gateway.batches.results import finish
from gateway.batches.services import cancel_batch
from tenancy.models import APIKey, Tenant
from tests.gateway.batches.conftest import CHAT, chat_line, driving, exhaust, jsonl, make_due, run_jobs, stage
from tests.gateway.world import assert_books, engine_of, in_database, opened, settled
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]


async def test_metadata_that_no_database_keeps_is_refused(place, settings):
    async with stage(place, settings) as scene, scene.client() as client:
        for metadata in ({"a": "\0"}, {"\0": "a"}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.batches.create(
                    input_file_id=f"file-{'0' * 32}", endpoint=CHAT, completion_window="24h", metadata=metadata
                )
            assert refused.value.param == "metadata"


async def test_the_sdk_runs_a_batch_from_upload_to_output(place, settings):
    """The gateway's own driver runs the lines; reading and writing files is the jobs'."""
    async with stage(place, settings, runs_lines=True) as scene, scene.client() as client:
        lines = [chat_line(number) for number in range(5)]
        lines[3]["body"]["temperature"] = 9
        file = await client.files.create(
            file=("in.jsonl", jsonl(lines)),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 7200},
        )
        assert (file.purpose, file.bytes, file.expires_at - file.created_at) == ("batch", len(jsonl(lines)), 7200)
        made = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "night"}
        )
        assert (made.status, made.metadata, made.expires_at - made.created_at) == (
            "validating",
            {"job": "night"},
            86_400,
        )
        await in_database(take_in)
        ended = BatchLine.objects.filter(state__in=(BatchLine.State.COMPLETED, BatchLine.State.FAILED))
        while await in_database(ended.count) < len(lines):  # noqa: ASYNC110 - bounded by the test's timeout
            await asyncio.sleep(0.01)
        await in_database(exhaust, finish)
        done = await client.batches.retrieve(made.id)
        assert (done.status, done.model, done.errors) == ("completed", "fake", None)
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (5, 4, 1)
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
        output = (await client.files.content(done.output_file_id)).text.splitlines()
        answers = [json.loads(line) for line in output]
        assert [answer["custom_id"] for answer in answers] == ["c0", "c1", "c2", "c4"]
        assert all(answer["id"].startswith("batch_req_") and answer["error"] is None for answer in answers)
        bodies = [answer["response"]["body"] for answer in answers]
        assert [body["choices"][0]["message"]["content"] for body in bodies] == ["say 0", "say 1", "say 2", "say 4"]
        assert all(answer["response"]["status_code"] == 200 for answer in answers)
        used = sum(body["usage"]["prompt_tokens"] for body in bodies)
        assert (done.usage.input_tokens, done.usage.total_tokens - done.usage.output_tokens) == (used, used)
        charged = sum(body["usage"]["credits_micro"] for body in bodies)
        assert done.usage.credits_micro == charged
        [wrong] = [json.loads(line) for line in (await client.files.content(done.error_file_id)).text.splitlines()]
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("c3", 400)
        assert wrong["response"]["body"]["error"]["param"] == "temperature"
        assert [batch.id async for batch in client.batches.list(limit=1)] == [made.id]
        names = {one.id: one.purpose for one in (await client.files.list()).data}
        assert names == {file.id: "batch", done.output_file_id: "batch_output", done.error_file_id: "batch_output"}
    total, rows = await in_database(assert_books, scene.world, records=4)
    assert total == charged
    assert {row.multiplier_bp for row in rows} == {5_000}
    assert {row.route["batch"] for row in rows} == {made.id}


async def test_other_endpoints_run_too(place, settings):
    async with stage(place, settings) as scene:
        asked = {
            "/v1/completions": {"prompt": "say 1"},
            "/v1/responses": {"input": "say 1"},
            "/v1/embeddings": {"input": ["say", "1"]},
        }
        batches = []
        for url, body in asked.items():
            line = {"custom_id": "one", "method": "POST", "url": url, "body": {"model": "fake", **body}}
            batches.append(await in_database(scene.desk.begin, [line], endpoint=url))
        await run_jobs(scene.runtime)
        kinds = []
        for batch in batches:
            [answer], errors = await in_database(scene.desk.results, batch)
            assert errors == []
            kinds.append(answer["response"]["body"]["object"])
            assert (await in_database(scene.desk.now, batch)).input_tokens > 0
        assert kinds == ["text_completion", "response", "list"]


async def test_a_hundred_lines_run_once_whoever_dies(place, settings):
    """The driver is left at several points, as a killed process leaves it, and another takes over what it had."""
    async with stage(place, settings, tokens=3, delay=0.001) as scene:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(100)])
        await in_database(take_in)
        for steps in (1, 2, 3):
            with driving(scene.runtime) as killed:
                for _ in range(steps):
                    await killed.step()
            assert await in_database(BatchLine.objects.filter(state=BatchLine.State.RUNNING).exists)
            await in_database(make_due)
        await run_jobs(scene.runtime)
        done = await in_database(scene.desk.now, batch)
        assert (done.status, done.completed, done.failed) == ("completed", 100, 0)
        output, errors = await in_database(scene.desk.results, batch)
        assert [answer["custom_id"] for answer in output] == [f"c{number}" for number in range(100)]
        assert errors == []
        told = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in output]
        assert told == [f"say {number}" for number in range(100)]
    charged, _ = await in_database(assert_books, scene.world, records=100)
    assert charged == done.charge


async def test_what_is_on_its_way_when_a_batch_is_cancelled_is_answered(place, settings):
    async with stage(place, settings, hang_at=1) as scene, scene.client() as client:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(3)])
        await in_database(take_in)
        name = f"batch_{batch.id.hex}"
        with driving(scene.runtime, slots=1) as driver:
            await driver.step()
            await engine_of(scene.runtime, scene.world).hanging()
            assert (await client.batches.cancel(name)).status == "cancelling"
            await driver.step()  # it learns of that
            await in_database(finish)
            assert (await client.batches.retrieve(name)).status == "cancelling"
            assert (await client.batches.cancel(name)).status == "cancelling"
            engine_of(scene.runtime, scene.world).release()
            await run_jobs(scene.runtime, driver)
        ended = await client.batches.retrieve(name)
        assert ended.status == "cancelled"
        assert ended.cancelled_at >= ended.cancelling_at
        output, errors = await in_database(scene.desk.results, batch)
        assert [line["custom_id"] for line in output] == ["c0"]  # another was claimed, and wasn't sent yet
        told = [(line["custom_id"], line["error"]["code"]) for line in errors]
        assert told == [("c1", "batch_cancelled"), ("c2", "batch_cancelled")]
        assert (ended.request_counts.completed, ended.request_counts.failed) == (1, 2)


async def test_a_claimed_line_that_never_ran_doesnt_run_after_its_batch_was_cancelled(place, settings):
    """Its process died before it sent it: whoever asks for its answer then must not have it run and charged."""
    async with stage(place, settings) as scene:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(2)])
        await in_database(take_in)

        def cancel_and_lapse():
            running = BatchLine.objects.filter(batch=batch, number=1)
            running.update(state=BatchLine.State.RUNNING, claimed_until=clock.now(), claim=uuid7(), attempts=1)
            cancel_batch(scene.world.tenant.id, scene.world.project.id, batch.id)

        await in_database(cancel_and_lapse)
        await run_jobs(scene.runtime)
        output, errors = await in_database(scene.desk.results, batch)
        assert output == []
        assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
            ("c0", "batch_cancelled"),
            ("c1", "batch_cancelled"),
        ]
        assert await in_database(scene.desk.records) == 0
        [line, _] = await in_database(lambda: list(BatchLine.objects.filter(batch=batch).order_by("number")))
        late = Task(line, batch, json.dumps(chat_line(0)["body"]).encode())  # of the dead process, only now
        refused = await Lines(scene.runtime, POSTS).ask(late, False)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (410, "batch_over")
        assert await in_database(scene.desk.records) == 0


def errors_of(lines):
    return [(line["response"]["status_code"], line["response"]["body"]["error"]["code"]) for line in lines]


async def test_a_line_needs_the_rights_of_the_key_when_it_runs(place, settings):
    """The key is revoked, and then the tenant suspended, after the batches were taken in."""
    async with stage(place, settings) as scene:
        told = []
        for take_away in (revoke, suspend):
            batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(2)])
            await in_database(take_in)
            await in_database(take_away, scene.world)
            for _ in range(2):  # the next reading of the epoch may have begun before
                await scene.runtime.catalogue.epoch.next()
            await run_jobs(scene.runtime)
            output, errors = await in_database(scene.desk.results, batch)
            assert output == []
            told += errors_of(errors)
            assert (await in_database(scene.desk.now, batch)).status == "completed"
        assert told == [(401, "api_key_revoked")] * 2 + [(403, "tenant_inactive")] * 2
    await in_database(assert_books, scene.world, records=0)


def revoke(world):
    APIKey.objects.unscoped().filter(id=world.key_id).update(revoked_at=clock.now())


def suspend(world):
    APIKey.objects.unscoped().filter(id=world.key_id).update(revoked_at=None)
    Tenant.objects.filter(id=world.tenant.id).update(is_active=False)


async def test_a_line_that_ran_is_answered_though_its_key_is_for_other_models_since(place, settings):
    """Its first answer was lost with who ran it. One that hasn't run needs what its key is for now."""
    async with stage(place, settings) as scene:
        batch = await in_database(scene.desk.begin, [chat_line(0), chat_line(1)])
        await in_database(take_in)
        lines, body = Lines(scene.runtime, POSTS), json.dumps(chat_line(0)["body"]).encode()
        rows = await in_database(lambda: list(BatchLine.objects.order_by("number")))
        line, other = (Task(row, batch, body) for row in rows)
        first = await lines.ask(line, False)
        await in_database(narrow, scene.world)
        for _ in range(2):
            await scene.runtime.catalogue.epoch.next()
        again = await lines.ask(line, False)
        assert (first.status, again.status, again.body) == (200, 200, first.body)
        refused = await lines.ask(other, False)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (403, "model_not_allowed")
    await in_database(assert_books, scene.world, records=1)


def narrow(world):
    APIKey.objects.unscoped().filter(id=world.key_id).update(allowed_models=["another"])


async def test_lines_for_which_there_is_no_credit_are_told_so(place, settings):
    price = 10 * 6 + 40 * 2
    async with stage(place, settings, credit=price // 2) as scene:  # batches cost half: one line's worth
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(3)])
        for _ in range(8):
            await run_jobs(scene.runtime)
            await in_database(make_due)
        output, errors = await in_database(scene.desk.results, batch)
        assert len(output) == 1
        assert errors_of(errors) == [(402, "credit_balance_exhausted")] * 2
    charged, _ = await in_database(assert_books, scene.world, records=1)
    assert charged == price // 2


async def test_a_gateway_that_stops_in_the_middle_costs_nothing_twice(place, settings):
    """The first gateway is closed while lines run in it; the second one runs what wasn't answered."""
    async with stage(place, settings, tokens=20, delay=0.005) as scene:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(12)])
        await in_database(take_in)
        with driving(scene.runtime) as driver:
            await driver.step()
            await until(lambda: scene.runtime.requests.live)
            await scene.runtime.requests.drain(patience=0)
            await driver.step()
        await in_database(make_due)
    async with opened(place) as runtime:
        for _ in range(5):
            await run_jobs(runtime)
            await in_database(make_due)
        await settled(runtime)
    done = await in_database(scene.desk.now, batch)
    assert (done.status, done.completed) == ("completed", 12)
    assert len({answer["custom_id"] for answer in (await in_database(scene.desk.results, batch))[0]}) == 12
    charged, rows = await in_database(charged_in, scene.world)
    assert charged == done.charge
    assert len([row for row in rows if row.charge]) == 12


def charged_in(world):
    return assert_books(world, records=UsageRecord.objects.count())
