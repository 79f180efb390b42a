"""Stored responses over a websocket, by the SDK's own connection."""

from __future__ import annotations

import pytest

from gateway.apis.responses.models import StoredResponse
from inference.messages import Message
from tests.gateway.apis.test_sdk import stage
from tests.gateway.world import assert_books, in_database

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER = Message("assistant", ("one two three",))
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


def said(text):
    return Message("user", (text,))


async def asked(connection, **given):
    """The event that ends the response."""
    await connection.response.create(**{"model": "fake", "input": "Hi"} | given)
    async for event in connection:
        if event.type in ENDS:
            return event
    raise AssertionError("the socket was closed")


async def test_a_stored_response_is_continued_on_another_socket_and_over_http(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        async with client.responses.connect() as connection:
            first = (await asked(connection, store=True)).response
            assert first.store is True
        async with client.responses.connect() as connection:
            second = (await asked(connection, input="And?", previous_response_id=first.id, store=True)).response
        await client.responses.create(model="fake", input="So?", previous_response_id=second.id)
        assert intents[-1].messages == (said("Hi"), ANSWER, said("And?"), ANSWER, said("So?"))
        assert (await client.responses.retrieve(second.id)).to_dict() == second.to_dict()


async def test_what_was_held_on_the_socket_alone_is_stored_with_what_goes_on_from_it(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        async with client.responses.connect() as connection:
            first = (await asked(connection)).response
            assert not await in_database(StoredResponse.objects.unscoped().count)
            second = (await asked(connection, input="And?", previous_response_id=first.id, store=True)).response
        listed = [item async for item in client.responses.input_items.list(second.id, order="asc")]
        assert [(item.role, item.content[0].text) for item in listed] == [
            ("user", "Hi"), ("assistant", "one two three"), ("user", "And?"),
        ]  # fmt: skip
        assert len({item.id for item in listed}) == 3
        await client.responses.create(model="fake", input="So?", previous_response_id=second.id)
        assert intents[-1].messages == (said("Hi"), ANSWER, said("And?"), ANSWER, said("So?"))


async def test_what_is_deleted_is_gone_for_the_socket_that_made_it(tmp_path):
    async with stage(tmp_path) as (_world, _runtime, client), client.responses.connect() as connection:
        first = (await asked(connection, store=True)).response
        await client.responses.delete(first.id)
        error = await asked(connection, previous_response_id=first.id)
        assert (error.status, error.error.code) == (400, "previous_response_not_found")


async def test_items_are_referred_to(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        async with client.responses.connect() as connection:
            first = (await asked(connection, store=True)).response
            again = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "And?"}]
            await asked(connection, input=again)
        assert intents[-1].messages == (ANSWER, said("And?"))


async def test_what_is_not_to_be_answered_is_gone_on_from_and_costs_nothing(tmp_path, intents):
    async with stage(tmp_path) as (world, _runtime, client), client.responses.connect() as connection:
        for store in (False, True):
            warm = (await asked(connection, input="Know this.", generate=False, store=store)).response
            assert (warm.status, warm.output, warm.usage.total_tokens) == ("completed", [], 0)
            await asked(connection, input="And?", previous_response_id=warm.id)
            assert intents[-1].messages == (said("Know this."), said("And?"))
        found = await client.responses.retrieve(warm.id)
        assert found.to_dict() == warm.to_dict()
        error = await asked(connection, model="none", generate=False)
        assert (error.status, error.error.code) == (404, "model_not_found")
    await in_database(assert_books, world, records=2)
