"""The answers that are kept for a tenant take a bounded part of the database."""

from __future__ import annotations

import time
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gateway.apis.responses.models import StoredResponse
from gateway.durable import room
from gateway.durable.answers import Claim, claim
from gateway.durable.models import KeptAnswer
from gateway.durable.room import ROW_BYTES, Room
from gateway.errors.refusal import Refusal
from tenancy.models import APIKey
from tests.control.api.test_durable import make
from tests.gateway.apis.client import assert_error
from tests.gateway.apis.files.test_files import TYPE, form
from tests.gateway.batches.conftest import chat_line, place, run_jobs, stage
from tests.gateway.durable.conftest import chat
from tests.gateway.world import assert_books, in_database

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]
__all__ = ["place"]
BACKGROUND = {"model": "fake", "input": "Hi", "background": True, "store": True}


@pytest.fixture
def room_for(settings):
    """Let the answers of each tenant take so many bytes."""

    def bound(most):
        settings.SLUICE_MOST_KEPT_BYTES = most

    return bound


async def test_a_new_key_is_refused_where_the_answers_take_all_the_room_and_the_others_go_on(gateway, room_for):
    room_for(2 * ROW_BYTES)
    async with gateway(tokens=3) as bench:
        first = await bench.ask(chat(), key="one").finished()
        assert (await bench.ask(chat(), key="two").finished()).status == 200
        for asked in (bench.ask(chat(), key="three"), bench.ask(BACKGROUND, key=None, path="/v1/responses")):
            refused = await asked.finished()
            assert_error(refused, 429, "too_much_kept")
            assert refused.headers["x-should-retry"] == "false"
        upload = bench.ask(form(), key="three", path="/v1/files", content_type=TYPE["content-type"])
        assert_error(await upload.finished(), 429, "too_much_kept")
        assert (await bench.ask(chat(), key="one").finished()).body == first.body
        assert (await bench.ask(chat(), key=None).finished()).status == 200
        assert not await in_database(StoredResponse.objects.unscoped().exists)
        assert await in_database(KeptAnswer.objects.unscoped().count) == 2
    await in_database(assert_books, bench.world, records=3)


async def test_there_is_room_again_once_answers_expire(gateway, room_for, monkeypatch):
    room_for(ROW_BYTES)
    async with gateway(tokens=3) as bench:
        assert (await bench.ask(chat(), key="one").finished()).status == 200
        assert_error(await bench.ask(chat(), key="two").finished(), 429, "too_much_kept")
        await in_database(KeptAnswer.objects.unscoped().update, expires_at=timezone.now())
        assert_error(await bench.ask(chat(), key="two").finished(), 429, "too_much_kept")
        later = time.monotonic() + room.COUNT_AGAIN_SECONDS
        monkeypatch.setattr(room.time, "monotonic", lambda: later)
        assert (await bench.ask(chat(), key="two").finished()).status == 200


@pytest.mark.usefixtures("place")
async def test_lines_of_batches_are_bounded_apart(tmp_path, settings, room_for):
    room_for(1)
    async with stage(tmp_path, settings) as bench:
        batch = await in_database(bench.desk.begin, [chat_line(1), chat_line(2)])
        await run_jobs(bench.runtime)
        output, errors = await in_database(bench.desk.results, batch)
        assert (len(output), errors) == (2, [])


def test_the_management_api_keeps_no_more_either(client, acme, room_for):
    room_for(ROW_BYTES)
    first = make(client, acme, {"name": "ci"})
    refused = make(client, acme, {"name": "more"}, key="m2")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_much_kept")
    assert make(client, acme, {"name": "ci"}).content == first.content
    assert APIKey.objects.unscoped().filter(name__in=["ci", "more"]).count() == 1


def test_the_answers_are_added_up_seldom(acme, room_for):
    """They are many where they are small: to add them up for each request would take the database long."""
    room_for(64 * ROW_BYTES)
    mine, tenant = Room(), acme.tenant.id
    with CaptureQueriesContext(connection) as asked:
        for _ in range(4):
            mine.require(tenant)
            mine.note(tenant, 0)
        counted = len(asked)
        mine.require(tenant)
        assert len(asked) == 2 * counted


def test_what_another_gateway_stored_is_seen_once_a_part_of_the_room_is_filled(acme, room_for):
    room_for(32 * ROW_BYTES)
    mine, tenant = Room(), acme.tenant.id
    mine.require(tenant)
    for number in range(32):
        claim(Claim(tenant, f"key:{number}", b""), UUID(int=number), tenant)
    mine.note(tenant, 0)
    mine.require(tenant)
    mine.note(tenant, 0)
    with pytest.raises(Refusal):
        mine.require(tenant)
