"""Batches through a real server, ledger and jobs: each line answered once, charged once, in its order."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest
from django.db import connections

from gateway.batches.driver import Driver
from gateway.batches.intake import take_in
from gateway.batches.results import finish
from gateway.models import BatchLine
from tests.gateway.batches.conftest import CHAT, chat_line, jsonl, make_due, run_jobs, stage
from tests.gateway.world import assert_books, engine_of, in_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]


async def test_the_sdk_runs_a_batch_from_upload_to_output(place, settings):
    async with stage(place, settings) as scene, scene.client() as client:
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
        await run_jobs()
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
        await run_jobs()
        kinds = []
        for batch in batches:
            [answer], errors = await in_database(scene.desk.results, batch)
            assert errors == []
            kinds.append(answer["response"]["body"]["object"])
            assert (await in_database(scene.desk.now, batch)).input_tokens > 0
        assert kinds == ["text_completion", "response", "list"]


async def test_two_hundred_lines_run_once_whoever_dies(place, settings):
    """The driver is left at several points, as a killed process leaves it, and another takes over what it had."""
    async with stage(place, settings, tokens=3, delay=0.001) as scene:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(200)])
        await asyncio.to_thread(_killed_again_and_again)
        await run_jobs()
        done = await in_database(scene.desk.now, batch)
        assert (done.status, done.completed, done.failed) == ("completed", 200, 0)
        output, errors = await in_database(scene.desk.results, batch)
        assert [answer["custom_id"] for answer in output] == [f"c{number}" for number in range(200)]
        assert errors == []
        told = [answer["response"]["body"]["choices"][0]["message"]["content"] for answer in output]
        assert told == [f"say {number}" for number in range(200)]
    charged, _ = await in_database(assert_books, scene.world, records=200)
    assert charged == done.charge


def _killed_again_and_again():
    try:
        take_in()
        for steps in (1, 2, 3):
            with closing(Driver(slots=4)) as killed:
                for _ in range(steps):
                    killed.step()
            assert BatchLine.objects.filter(state=BatchLine.State.RUNNING).exists()
            make_due()
    finally:
        connections.close_all()


async def test_what_is_on_its_way_when_a_batch_is_cancelled_is_answered(place, settings):
    async with stage(place, settings, hang_at=1) as scene, scene.client() as client:
        batch = await in_database(scene.desk.begin, [chat_line(number) for number in range(3)])
        driver = Driver(slots=1)
        await in_database(take_in)
        await in_database(driver.step)
        name = f"batch_{batch.id.hex}"
        assert (await client.batches.cancel(name)).status == "cancelling"
        await in_database(finish)
        assert (await client.batches.retrieve(name)).status == "cancelling"
        assert (await client.batches.cancel(name)).status == "cancelling"
        engine_of(scene.runtime, scene.world).release()
        await run_jobs(driver)
        ended = await client.batches.retrieve(name)
        assert ended.status == "cancelled"
        assert ended.cancelled_at >= ended.cancelling_at
        output, errors = await in_database(scene.desk.results, batch)
        assert [line["custom_id"] for line in output] == ["c0", "c1"]  # one is ready beside the one on its way
        assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [("c2", "batch_cancelled")]
        assert (ended.request_counts.completed, ended.request_counts.failed) == (2, 1)
