"""Responses of a websocket that outlive it, and go on over another one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.gateway.apis.responses.test_stored import set_storage
from tests.gateway.apis.responses.test_websocket import ENDS
from tests.gateway.apis.test_sdk import stage
from tests.gateway.world import assert_books, engine_of, in_database, settled
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

CREATE = {"type": "response.create", "model": "fake", "input": "Hi", "resumable": True}


async def received(connection, *kinds):
    """The events up to the first of one of these types."""
    events = []
    while not events or events[-1]["type"] not in kinds:
        events.append(json.loads(await connection.recv_bytes()))
    return events


async def sent(connection, event, *kinds):
    await connection.send_raw(json.dumps(event))
    return await received(connection, *(kinds or ENDS))


def resume(identifier, after=None):
    return {"type": "response.resume", "response_id": identifier, "starting_after": after}


async def unread(runtime):
    """Return when nobody reads any log."""
    await until(lambda: not any(keeper._readers for keeper in runtime.replays._keepers.values()))


def hang_at(engine, number):
    """Let what runs go on up to that token."""
    engine.options = replace(engine.options, hang_at=number)
    engine.release()
    engine._state.released.clear()


async def test_it_goes_on_over_ten_sockets_and_is_charged_once(tmp_path):
    words = [f"w{number}" for number in range(12)]
    async with stage(tmp_path, text=" ".join(words), hang_at=1) as (world, runtime, client):
        events = []
        for cut in range(10):
            async with client.responses.connect() as connection:
                if not events:
                    events += await sent(connection, CREATE, "response.in_progress")
                else:
                    event = resume(events[0]["response"]["id"], events[-1]["sequence_number"])
                    events += await sent(connection, event, "response.output_text.delta")
            await unread(runtime)
            hang_at(engine_of(runtime, world), cut + 2)
        hang_at(engine_of(runtime, world), 0)
        identifier = events[0]["response"]["id"]
        async with client.responses.connect() as connection:
            events += await sent(connection, resume(identifier, events[-1]["sequence_number"]))
            whole = await sent(connection, resume(identifier))
        assert events == whole
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        told = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(told).split() == words
    await in_database(assert_books, world, records=1)


async def test_it_is_stopped_over_another_socket(tmp_path):
    async with stage(tmp_path, hang_at=2) as (world, _runtime, client):
        async with client.responses.connect() as connection:
            begun = await sent(connection, CREATE, "response.output_text.delta")
            identifier = begun[0]["response"]["id"]
        async with client.responses.connect() as connection:
            event = {**resume(identifier, begun[-1]["sequence_number"]), "stream_id": "a"}
            await connection.send_raw(json.dumps(event))
            cancel = {"type": "response.cancel", "response_id": identifier}
            await connection.send_raw(json.dumps(cancel))
            [*_, last] = await received(connection, *ENDS)
            assert (last["response"]["status"], last["stream_id"]) == ("cancelled", "a")
    await in_database(assert_books, world, records=1)


async def test_nobody_reads_it_for_the_plans_time(tmp_path):
    async with stage(tmp_path, hang_at=2, terms={"resume_s": 0}) as (world, runtime, client):
        async with client.responses.connect() as connection:
            begun = await sent(connection, CREATE, "response.output_text.delta")
            identifier = begun[0]["response"]["id"]
        await settled(runtime)
        async with client.responses.connect() as connection:
            last = (await sent(connection, resume(identifier)))[-1]
            assert (last["type"], last["error"]["code"]) == ("error", "answer_abandoned")
    await in_database(assert_books, world, records=1)


async def test_what_isnt_resumable_is_named(tmp_path):
    async with stage(tmp_path) as (world, runtime, client), client.responses.connect() as connection:
        [*_, plain] = await sent(connection, {**CREATE, "resumable": False})
        for identifier in (plain["response"]["id"], "resp_1"):
            [error] = await sent(connection, resume(identifier))
            assert (error["status"], error["error"]["code"]) == (404, "response_not_found")
        [*_, done] = await sent(connection, CREATE)
        [error] = await sent(connection, resume(done["response"]["id"], 99))
        assert error["error"]["code"] == "invalid_value"
        [error] = await sent(connection, {**CREATE, "model": "none"})
        assert error["error"]["code"] == "model_not_found"
        await set_storage(world, runtime, "forbidden")
        [error] = await sent(connection, CREATE)
        assert error["error"]["code"] == "storing_forbidden"


async def test_it_is_stored_and_gone_on_from_too(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        async with client.responses.connect() as connection:
            [*_, stored] = await sent(connection, {**CREATE, "store": True})
            [*_, kept] = await sent(connection, CREATE)
            await sent(connection, {**CREATE, "previous_response_id": kept["response"]["id"]})
            assert len(intents[-1].messages) == 3
        found = await client.responses.retrieve(stored["response"]["id"])
        assert found.to_dict() == stored["response"]
