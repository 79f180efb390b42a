"""Stored responses over HTTP: the unmodified SDK, a real ledger and the fake engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import openai
import pytest
from django.db import DatabaseError
from django.utils import timezone

from billing.services import plans, wallets
from gateway.apis.responses import conversation, rows
from gateway.apis.responses.models import StoredResponse
from gateway.runtime.tenant_cache import TenantCache
from inference.messages import Image, Message
from operation.jobs.purge import purge
from routing.models import PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tenancy.models import Project, Tenant
from tenancy.services import keys
from tests.gateway.apis.test_sdk import COST, HI, stage
from tests.gateway.wire.test_images import data_url, png
from tests.gateway.world import assert_books, in_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

UNKNOWN = "resp_019390aaaaaa7aaaaaaaaaaaaaaaaaaa"
IMAGE = {"type": "input_image", "image_url": data_url(png(1, 1))}
ANSWER = Message("assistant", ("one two three",))


def said(text, role="user"):
    return Message(role, (text,))


def stored():
    return StoredResponse.objects.unscoped()


async def refused(call, kind=openai.BadRequestError):
    with pytest.raises(kind) as caught:
        await call
    return caught.value.code


async def set_storage(world, runtime, storage):
    """Change the tenant's setting, and wait until the gateway knows it."""
    await in_database(Tenant.objects.filter(pk=world.tenant.pk).update, response_storage=storage)
    async with asyncio.timeout(120):
        while (await runtime.principals.by_key(world.secret)).response_storage != storage:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def test_what_is_stored_is_read_listed_and_deleted(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        made = await client.responses.create(model="fake", input="Hi", store=True, metadata={"a": "b"})
        assert made.store is True
        found = await client.responses.retrieve(made.id, include=["message.output_text.logprobs"])
        assert found.to_dict() == made.to_dict()
        [item] = [item async for item in client.responses.input_items.list(made.id)]
        assert (item.type, item.role, item.content[0].text) == ("message", "user", "Hi")
        await client.responses.delete(made.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            assert await refused(gone(made.id), openai.NotFoundError) == "response_not_found"
        assert not await in_database(stored().count)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == COST


async def test_a_stream_is_stored_as_it_ended(tmp_path):
    async with stage(tmp_path) as (_world, _runtime, client):
        stream = await client.responses.create(model="fake", input="Hi", store=True, stream=True)
        events = [event async for event in stream]
        last = events[-1].response
        assert (events[0].response.store, last.store) == (True, True)
        assert (await client.responses.retrieve(last.id)).to_dict() == last.to_dict()


async def test_nothing_is_stored_unasked_and_the_tenants_setting_decides(tmp_path):
    async with stage(tmp_path) as (world, runtime, client):

        async def is_stored(**given):
            made = await client.responses.create(model="fake", input="Hi", **given)
            assert await in_database(stored().filter(id=made.id.removeprefix("resp_")).exists) is made.store
            return made.store

        assert [await is_stored(), await is_stored(store=False), await is_stored(store=True)] == [False, False, True]
        await set_storage(world, runtime, "by_default")
        assert [await is_stored(), await is_stored(store=False), await is_stored(store=True)] == [True, False, True]
        await set_storage(world, runtime, "forbidden")
        assert [await is_stored(), await is_stored(store=False)] == [False, False]
        assert await refused(client.responses.create(model="fake", input="Hi", store=True)) == "storing_forbidden"
        assert await in_database(purge, timezone.now()) == 3
        assert not await in_database(stored().count)


async def test_a_conversation_goes_on_without_its_instructions(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        first = await client.responses.create(model="fake", input="Hi", instructions="Be kind.", store=True)
        second = await client.responses.create(
            model="fake", input=[{"role": "user", "content": "And?"}], previous_response_id=first.id, store=True
        )
        third = await client.responses.create(
            model="fake", input="Well?", instructions="Be brief.", previous_response_id=second.id
        )
        assert intents[0].messages == (said("Be kind.", "system"), said("Hi"))
        assert intents[1].messages == (said("Hi"), ANSWER, said("And?"))
        assert intents[2].messages == (
            said("Be brief.", "system"), said("Hi"), ANSWER, said("And?"), ANSWER, said("Well?"),
        )  # fmt: skip
        assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
        listed = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
        assert [(item.role, item.content[0].text) for item in listed] == [
            ("user", "Hi"), ("assistant", "one two three"), ("user", "And?"),
        ]  # fmt: skip
        backwards = await client.responses.input_items.list(second.id, limit=2)
        assert [item.id for item in backwards.data] == [listed[2].id, listed[1].id]
        assert (backwards.has_more, backwards.first_id, backwards.last_id) == (True, listed[2].id, listed[1].id)
        assert await refused(client.responses.input_items.list(second.id, after="msg_1")) == "invalid_value"


async def test_a_conversation_with_calls_reasoning_and_images_goes_on(tmp_path, intents):
    given = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Look."}, IMAGE],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "A dot."},
    ]
    async with stage(tmp_path, images="data") as (_world, _runtime, client):
        first = await client.responses.create(model="fake", input=given, store=True, top_logprobs=1)
        await client.responses.create(model="fake", input="And?", previous_response_id=first.id)
        before, after = intents[0].messages, intents[1].messages
        assert any(isinstance(part, Image) for part in before[0].parts)
        assert after == (*before, ANSWER, said("And?"))
        listed = [item async for item in client.responses.input_items.list(first.id, order="asc")]
        assert [item.type for item in listed] == ["message", "reasoning", "function_call", "function_call_output"]
        assert listed[1].id == "rs_1"
        assert len({item.id for item in listed}) == 4


async def test_items_are_referred_to(tmp_path, intents):
    async with stage(tmp_path) as (_world, _runtime, client):
        first = await client.responses.create(model="fake", input="Hi", store=True)
        [asked] = [item async for item in client.responses.input_items.list(first.id)]
        references = [{"type": "item_reference", "id": name} for name in (asked.id, first.output[0].id)]
        again = [*references, {"role": "user", "content": "And?"}]
        second = await client.responses.create(model="fake", input=again, store=True)
        assert intents[1].messages == (said("Hi"), ANSWER, said("And?"))
        listed = [item async for item in client.responses.input_items.list(second.id, order="asc")]
        assert [item.id for item in listed][:2] == [asked.id, first.output[0].id]
        unstored = await client.responses.create(model="fake", input="Hi")
        for name in (unstored.output[0].id, "msg_1", f"msg_{first.id[5:]}_9"):
            wrong = client.responses.create(model="fake", input=[{"type": "item_reference", "id": name}])
            with pytest.raises(openai.NotFoundError, match=r"settings page.*store: false") as caught:
                await wrong
            assert caught.value.code == "item_not_found"


async def test_what_is_gone_is_not_continued(tmp_path, settings):
    async with stage(tmp_path) as (_world, _runtime, client):
        first = await client.responses.create(model="fake", input="Hi", store=True)
        second = await client.responses.create(model="fake", input="Hi", store=True, previous_response_id=first.id)
        await client.responses.delete(first.id)
        for name in (first.id, second.id, UNKNOWN, "resp_1"):
            going_on = client.responses.create(model="fake", input="Hi", previous_response_id=name)
            assert await refused(going_on) == "previous_response_not_found"
        later = await client.responses.create(model="fake", input="Hi", store=True)
        await in_database(stored().update, expires_at=timezone.now() - timedelta(seconds=1))
        assert await refused(client.responses.retrieve(later.id), openai.NotFoundError) == "response_not_found"
        going_on = client.responses.create(model="fake", input="Hi", previous_response_id=later.id)
        assert await refused(going_on) == "previous_response_not_found"
        assert await in_database(purge, timezone.now()) == 2


async def test_a_conversation_has_so_many_turns_and_bytes(tmp_path, monkeypatch, settings):
    monkeypatch.setattr(rows, "MOST_TURNS", 3)
    async with stage(tmp_path) as (_world, _runtime, client):

        def go_on(previous=None, text="Hi"):
            return client.responses.create(model="fake", input=text, store=True, previous_response_id=previous)

        second = await go_on((await go_on()).id)
        third = await go_on(second.id)
        assert await refused(go_on(third.id)) == "conversation_too_long"
        size = await in_database(lambda: sum(stored().values_list("size", flat=True)[1:]))
        settings.SLUICE_MAX_BODY_BYTES = size - 1
        assert await refused(go_on(second.id)) == "conversation_too_long"


def outsiders(world):
    """Return a key of another project of the tenant, and one of another tenant."""
    project = Project(tenant=world.tenant, name="Other")
    project.save(force_insert=True)
    other = Tenant.objects.create(name="Other", slug="other")
    strange = Project(tenant=other, name="Default")
    strange.save(force_insert=True)
    wallets.open_wallet(tenant_id=other.id)
    plans.subscribe(other.id, "test")
    return [keys.create_key(tenant=at.tenant, project=at, name="x")[1] for at in (project, strange)]


async def test_nobody_erases_the_kept_answer_of_others(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):

        async def asked():
            return await client.responses.create(model="fake", input="Hi", extra_headers={"Idempotency-Key": "k"})

        made = await asked()
        for secret in await in_database(outsiders, world):
            stranger = client.with_options(api_key=secret)
            gone = stranger.responses.delete(made.id)
            assert await refused(gone, openai.NotFoundError) == "response_not_found"
            assert (await asked()).id == made.id
    await in_database(assert_books, world, records=1)


async def test_another_project_and_another_tenant_see_nothing(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        mine = await client.responses.create(model="fake", input="Secret", store=True)
        for secret in await in_database(outsiders, world):
            stranger = client.with_options(api_key=secret)
            for call in (
                stranger.responses.retrieve,
                stranger.responses.delete,
                stranger.responses.input_items.list,
            ):
                assert await refused(call(mine.id), openai.NotFoundError) == "response_not_found"
            for given, kind, code in (
                ({"previous_response_id": mine.id}, openai.BadRequestError, "previous_response_not_found"),
                (
                    {"input": [{"type": "item_reference", "id": mine.output[0].id}]},
                    openai.NotFoundError,
                    "item_not_found",
                ),
            ):
                assert (
                    await refused(stranger.responses.create(**{"model": "fake", "input": "Hi"} | given), kind) == code
                )
        assert (await client.responses.retrieve(mine.id)).id == mine.id


async def test_an_answer_that_cant_be_stored_is_delivered_and_says_so(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise DatabaseError("disk full")

    monkeypatch.setattr(rows, "add", broken)
    async with stage(tmp_path) as (world, _runtime, client):
        made = await client.responses.create(model="fake", input="Hi", store=True)
        assert (made.status, made.store) == ("completed", False)
    await in_database(assert_books, world, records=1)


async def test_a_conversation_takes_one_query(tmp_path, django_assert_num_queries):
    async with stage(tmp_path) as (world, _runtime, client):
        last = await client.responses.create(model="fake", input="Hi", store=True)
        for _ in range(3):
            last = await client.responses.create(model="fake", input="Hi", store=True, previous_response_id=last.id)

    def read():
        owner = rows.Owner(world.tenant.id, world.project.id)
        with django_assert_num_queries(1):
            turns = conversation.turns_of(owner, conversation.request_id_in(last.id), last.id)
        assert len(turns) == 4

    await in_database(read)


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"order": "up"}, {"colour": "red"}, {"include": ["x"]}]
)
async def test_wrong_queries_are_refused(tmp_path, query):
    async with stage(tmp_path) as (_world, _runtime, client):
        made = await client.responses.create(model="fake", input="Hi", store=True)
        await refused(client.responses.input_items.list(made.id, extra_query=query))


async def test_input_is_counted_as_it_would_be_charged(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        first = await client.responses.create(model="fake", input="Hi", store=True)
        given = {"model": "fake", "input": "And?", "instructions": "Be kind.", "previous_response_id": first.id}
        counted = await client.responses.input_tokens.count(**given)
        second = await client.responses.create(**given)
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", second.usage.input_tokens)
        assert (await client.responses.input_tokens.count(model="fake", input=HI)).input_tokens == 5
        assert await refused(client.responses.input_tokens.count(model="fake")) == "missing_required_parameter"
        wrong = client.responses.input_tokens.count(model="fake", input="Hi", truncation="auto")
        assert await refused(wrong) == "unsupported_parameter"
    await in_database(assert_books, world, records=2)


async def test_auto_goes_on_with_the_model_of_the_stored_response_at_any_gateway(tmp_path):
    def with_other_model():
        for name, is_first in (("other", True), ("fake", False)):
            if is_first:
                add_model(
                    name=name, kinds=["chat"], context_length=8192, rate_card="fake-card", source="", backend="fake"
                )
            rule = RouteRule.objects.create(name=name, priority=1 + is_first)
            RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name=name))

    def is_served(catalogue, engines):
        replicas = catalogue.replicas_of("other")
        return len(catalogue.rules) == 2 and replicas and not engines.usable(replicas[0].id)

    async with stage(tmp_path) as (_world, runtime, client):
        await in_database(with_other_model)
        async with asyncio.timeout(120):
            while not is_served(runtime.catalogue.snapshot.catalogue, runtime.engines):
                await runtime.catalogue.epoch.next()
                await runtime.catalogue.current()
        first = await client.responses.create(model="other", input="Hi", store=True)
        assert (await client.responses.create(model="auto", input="Hi")).model == "fake"
        again = await client.responses.create(model="auto", input="And?", previous_response_id=first.id, store=True)
        assert again.model == "other"  # which this gateway kept nowhere: the request before named it
        runtime.catalogue.conversations = TenantCache(1)  # as at another gateway
        assert (
            await client.responses.create(model="auto", input="Well?", previous_response_id=again.id)
        ).model == "other"
