"""The unmodified OpenAI SDK against a real server, a real ledger and the fake engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import openai
import pydantic
import pytest
import websockets.exceptions
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

from billing.services import promises, rollups
from billing.writer.entry import WriterError
from billing.writer.operations import Settle
from tenancy.models import APIKey
from tests.gateway.apis.server import sdk, serving, with_runtime
from tests.gateway.world import assert_books, engine_of, in_database, make_world, opened, settled
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

HI = [{"role": "user", "content": "Hi"}]
COST = 5 * 10 + 3 * 40  # prompt of five fake tokens, answer of three, µcr each


@asynccontextmanager
async def stage(tmp_path, **options):
    """A world, its runtime, and a client of its server."""
    world = await in_database(make_world, **{"text": "one two three", **options})
    async with opened(tmp_path) as runtime, serving(with_runtime(runtime)) as place:
        async with sdk(world.secret, place) as client:
            client.place = place
            yield world, runtime, client
        await settled(runtime)


async def test_chat_whole_and_streamed_costs_the_same(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        whole = await client.chat.completions.create(model="fake", messages=HI, user="u", store=False)
        stream = await client.chat.completions.create(
            model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert text.split() == ["one", "two", "three"]
        assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "stop"
        assert whole.usage == chunks[-1].usage
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 3)
        assert whole.usage.credits_micro == COST
        assert whole.usage.credits == "0.00017"
        assert whole.id.startswith("chatcmpl-")
        assert whole.model == "fake"
    charged, _ = await in_database(assert_books, world, records=2)
    assert charged == 2 * COST


async def test_completions_of_several_prompts_cost_what_was_told(tmp_path):
    async with stage(tmp_path, echo=True) as (world, _runtime, client):
        whole = await client.completions.create(model="fake", prompt=["one two", "three"], max_tokens=5)
        assert [(choice.index, choice.text, choice.finish_reason) for choice in whole.choices] == [
            (0, "one two", "stop"),
            (1, "three", "stop"),
        ]
        stream = await client.completions.create(
            model="fake", prompt=["one two", "three"], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == ["one two", "three"]
        assert chunks[-1].usage == whole.usage
        cost = whole.usage.credits_micro
    charged, _ = await in_database(assert_books, world, records=4)
    assert charged == 2 * cost > 0


async def test_several_answers_are_charged_with_one_prompt(tmp_path):
    async with stage(tmp_path) as (world, _runtime, client):
        whole = await client.chat.completions.create(model="fake", messages=HI, n=2)
        assert [choice.message.content for choice in whole.choices] == ["0: one two three", "1: one two three"]
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 8)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 5 * 10 + 8 * 40


async def test_sync_client_streams(tmp_path):
    def talk(key, place):
        with OpenAI(api_key=key, base_url=f"http://{place}/v1", max_retries=0) as client:
            raw = client.chat.completions.with_raw_response.create(model="fake", messages=HI)
            assert raw.headers["x-sluice-credits"] == "0.00017"
            assert raw.headers["x-ratelimit-limit-requests"]
            with client.chat.completions.stream(model="fake", messages=HI) as stream:
                final = stream.get_final_completion()
            events = list(client.responses.create(model="fake", input="Hi", stream=True))
            return raw.headers["x-request-id"], raw.parse().id, final, events

    async with stage(tmp_path) as (world, _, client):
        request_id, answer_id, final, events = await asyncio.to_thread(talk, world.secret, client.place)
        assert answer_id == f"chatcmpl-{request_id.replace('-', '')}"
        assert final.choices[0].message.content.split() == ["one", "two", "three"]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text.split() == ["one", "two", "three"]


async def test_responses_whole_and_streamed(tmp_path):
    async with stage(tmp_path, cached=1.0) as (_, _runtime, client):
        whole = await client.responses.create(model="fake", input="Hi", instructions="Be brief.", metadata={"a": "b"})
        assert whole.status == "completed"
        assert whole.output_text.split() == ["one", "two", "three"]
        assert whole.usage.input_tokens_details.cached_tokens > 0
        assert whole.usage.total_tokens == whole.usage.input_tokens + 3
        assert whole.metadata == {"a": "b"}
        async with client.responses.stream(model="fake", input="Hi") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert final.output_text == whole.output_text
        cut = await client.responses.create(model="fake", input="Hi", max_output_tokens=2)
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_answers_are_parsed_as_the_clients_own_classes(tmp_path):
    class City(pydantic.BaseModel):
        name: str
        people: int

    oslo = City(name="Oslo", people=7)
    async with stage(tmp_path, text='{"name": "Oslo", "people": 7}', guides=True) as (_, _runtime, client):
        chat = await client.chat.completions.parse(model="fake", messages=HI, response_format=City)
        assert chat.choices[0].message.parsed == oslo
        response = await client.responses.parse(model="fake", input="Hi", text_format=City)
        assert response.output_parsed == oslo
        assert response.text.format.schema_["required"] == ["name", "people"]
        async with client.responses.stream(model="fake", input="Hi", text_format=City) as stream:
            assert (await stream.get_final_response()).output_parsed == oslo


async def test_embeddings_and_models(tmp_path):
    async with stage(tmp_path) as (_, _runtime, client):
        made = await client.embeddings.create(model="fake", input=["a", "b"])  # the SDK asks for base64
        plain = await client.embeddings.create(model="fake", input=["a", "b"], encoding_format="float", dimensions=8)
        assert [item.embedding for item in made.data] == [item.embedding for item in plain.data]
        assert len(made.data[0].embedding) == 8
        assert made.usage.prompt_tokens > 0
        with pytest.raises(openai.BadRequestError) as cut:
            await client.embeddings.create(model="fake", input="a", dimensions=4)
        assert (cut.value.code, cut.value.param) == ("unsupported_parameter", "dimensions")
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.embeddings.create(model="nothing", input="a", dimensions=4)
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        assert made.usage.credits_micro == plain.usage.credits_micro > 0
        cards = {card.id: card async for card in await client.models.list()}
        assert set(cards) == {"auto", "fake"}
        assert (await client.models.retrieve("fake")).context_length == 8192
        assert cards["fake"].pricing["tiers"][0]["credits_per_million"]["output"] == "40"


async def test_websocket_answers_and_continues(tmp_path):
    async with stage(tmp_path, text="", echo=True) as (world, _runtime, client):  # noqa: SIM117 - one gives the other
        async with client.responses.connect() as socket:
            await socket.response.create(model="fake", input="one two")
            events = []
            async for event in socket:
                events.append(event)
                if event.type == "response.completed":
                    break
            first = events[-1].response
            assert first.output_text == "one two"
            assert [event.sequence_number for event in events] == list(range(len(events)))
            await socket.response.create(model="fake", input="three", previous_response_id=first.id)
            async for event in socket:
                if event.type == "response.completed":
                    break
            assert event.response.output_text == "three"
            assert event.response.usage.input_tokens > first.usage.input_tokens
            await socket.response.create(model="nothing", input="x")
            error = await socket.recv()
            assert (error.type, error.status, error.error.code) == ("error", 404, "model_not_found")
    await in_database(assert_books, world, records=2)


async def test_websocket_lanes_of_the_sdk(tmp_path):
    limits = ResponsesWebSocketLimits(
        max_lanes=4, max_events_per_lane=64, max_events=256, max_bytes_per_lane=2**20, max_bytes=2**22
    )
    async with (
        stage(tmp_path) as (_, _runtime, client),
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=limits) as session,
    ):
        lanes = [session.lane(name) for name in ("a", "b")]
        for lane in lanes:
            await lane.send({"type": "response.create", "model": "fake", "input": "Hi"})
        for lane in lanes:
            assert (await lane.get_final_response()).output_text.split() == ["one", "two", "three"]


async def test_websocket_with_events_of_our_own_does_not_disturb_the_sdk(tmp_path):
    async with stage(tmp_path) as (_, _runtime, client):  # noqa: SIM117 - one gives the other
        async with client.responses.connect(extra_query={"sluice": "1"}) as socket:
            await socket.response.create(model="fake", input="Hi")
            kinds = []
            async for event in socket:
                kinds.append(event.type)
                if event.type == "response.completed":
                    break
            assert "sluice.usage" in kinds
            assert event.response.sluice["route"]["model"] == "fake"
            assert event.response.sluice["available_micro"] == 10_000_000 - COST


async def test_websocket_without_a_good_key_is_refused_with_the_reason(tmp_path):
    async with stage(tmp_path) as (_, _runtime, client):
        stranger = client.with_options(api_key="sk-sluice-none")
        with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
            async with stranger.responses.connect():
                pass
        assert caught.value.response.status_code == 401
        assert b"invalid_api_key" in caught.value.response.body


async def test_errors_are_the_sdks_exceptions(tmp_path):
    async with stage(tmp_path) as (world, runtime, client):
        ask = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            await ask(model="fake", messages=HI, store=True)
        assert (bad.value.code, bad.value.param) == ("unsupported_parameter", "store")
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError) as missing:
            await ask(model="nothing", messages=HI)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            await ask(model="fake", messages=[{"role": "user", "content": "x" * 40_000}])
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-sluice-none").models.list()
        await in_database(APIKey.objects.unscoped().filter(id=world.key_id).update, expires_at="2020-01-01T00:00Z")
        for _ in range(2):  # the next reading of the epoch may have begun before
            await runtime.catalogue.epoch.next()
        with pytest.raises(openai.AuthenticationError) as expired:
            await ask(model="fake", messages=HI)
        assert expired.value.code == "api_key_expired"
    await in_database(assert_books, world, records=0)


async def test_empty_wallet_is_402_and_not_retried(tmp_path):
    async with stage(tmp_path, credit=0) as (_, runtime, client):
        with pytest.raises(openai.APIStatusError) as short:
            await client.with_options(max_retries=3).chat.completions.create(model="fake", messages=HI)
        assert (short.value.status_code, short.value.code) == (402, "credit_balance_exhausted")
        assert 'endpoint="/v1/chat/completions",status="402"} 1.0' in runtime.metrics.render().decode()


async def test_lost_engine_is_an_error_in_the_stream_with_its_charge(tmp_path):
    async with stage(tmp_path, error_at=3) as (world, _runtime, client):
        stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
        with pytest.raises(openai.APIError) as lost:
            async for _ in stream:
                pass
        assert lost.value.body["code"]
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="fake", messages=HI)
    await in_database(assert_books, world, records=2)


async def test_answer_is_delivered_while_its_settlement_is_pending(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.generation.settlement.SETTLE_SECONDS", 0.05)
    async with stage(tmp_path) as (_, runtime, client):
        submit = runtime.writer.submit

        async def without_settling(operation, seconds=None):
            if isinstance(operation, Settle):
                raise WriterError("the database is away")
            return await submit(operation, seconds)

        monkeypatch.setattr(runtime.writer, "submit", without_settling)
        raw = await client.chat.completions.with_raw_response.create(model="fake", messages=HI)
        assert "x-sluice-credits" not in raw.headers
        whole = raw.parse()
        assert whole.choices[0].message.content.split() == ["one", "two", "three"]
        assert (whole.usage.credits, whole.usage.credits_micro, whole.usage.settlement) == (None, None, "pending")
        events = [event async for event in await client.responses.create(model="fake", input="Hi", stream=True)]
        assert events[-1].type == "response.completed"
        assert (events[-1].response.usage.credits, events[-1].response.usage.settlement) == (None, "pending")
        told = await client.get(f"/usage/{whole.id}", cast_to=dict)
        assert (told["status"], told["usage"]) == ("pending", None)


async def test_answer_in_one_piece_that_we_broke_is_told_as_waived(tmp_path):
    async with stage(tmp_path, error_at=3) as (_, _runtime, client):
        with pytest.raises(openai.InternalServerError) as broken:
            await client.chat.completions.create(model="fake", messages=HI)
        assert broken.value.response.headers["x-sluice-credits"] == "0"
        told = await client.get(f"/usage/{broken.value.request_id}", cast_to=dict)
        assert (told["waived"], told["usage"]["credits"]) == (True, "0")


@pytest.mark.parametrize(("within", "credited"), [(0, "0.000085"), (10**8, None)])
async def test_a_missed_promise_is_credited_and_told(tmp_path, within, credited):
    terms = {"promised_ttft_ms": within, "promise_credit_bp": 5_000}
    async with stage(tmp_path, terms=terms, delay=0.005) as (_, _runtime, client):
        raw = await client.chat.completions.with_raw_response.create(model="fake", messages=HI)
        request = raw.headers["x-request-id"]
        await in_database(rollups.consume_usage)
        await in_database(lambda: promises.credits_due().turn())
        told = await client.get(f"/usage/{request}", cast_to=dict)
    promise = told["promise"]
    assert (promise["kept"], promise["credited"]) == (credited is None, credited)
    assert promise["promised_ttft_ms"] == within < promise["ttft_ms"] or credited is None
    assert told["refunded"] == (credited or "0")


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_is_charged_for_what_ran(tmp_path, stream):
    async with stage(tmp_path, hang_at=3) as (world, runtime, client):
        asked = asyncio.ensure_future(client.chat.completions.create(model="fake", messages=HI, stream=stream))
        if stream:
            answer = await asked
            async for chunk in answer:
                if "two" in (chunk.choices[0].delta.content or ""):
                    break
            await answer.close()
        else:
            await started(runtime, tokens=2)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await settled(runtime)
        assert (await engine_of(runtime, world).health()).running == 0
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.output_tokens, row.finish) == (5 * 10 + 2 * 40, 2, "cancelled")


async def test_websocket_client_that_leaves_is_charged_for_what_ran(tmp_path):
    async with stage(tmp_path, hang_at=3) as (world, runtime, client):
        async with client.responses.connect() as socket:
            await socket.response.create(model="fake", input="Hi")
            await started(runtime, tokens=2)
        await settled(runtime)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 5 * 10 + 2 * 40


async def test_usage_is_told_pending_and_settled_to_its_own_tenant(tmp_path):
    async with stage(tmp_path, hang_at=3) as (world, runtime, client):
        other = await in_database(make_other)
        for _ in range(2):  # the next reading of the epoch may have begun before
            await runtime.catalogue.epoch.next()
        stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
        answer = (await anext(aiter(stream))).id
        pending = await client.get(f"/usage/{answer}", cast_to=dict)
        assert (pending["status"], pending["usage"]) == ("pending", None)
        assert (pending["endpoint"], pending["route"]["model"]) == ("chat.completions", "fake")
        with pytest.raises(openai.NotFoundError):
            await client.with_options(api_key=other).get(f"/usage/{answer}", cast_to=dict)
        await stream.close()
        await settled(runtime)
        request_id = stream.response.headers["x-request-id"]
        for name in (answer, request_id, request_id.replace("-", "")):
            told = await client.get(f"/usage/{name}", cast_to=dict)
            assert (told["status"], told["finish_reason"]) == ("settled", "cancelled")
            assert told["usage"]["credits_micro"] == 50 + told["usage"]["output_tokens"] * 40
            assert told["route"]["model"] == "fake"
        for key, name in ((other, request_id), (world.secret, "resp_" + "0" * 32), (world.secret, "x")):
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.with_options(api_key=key).get(f"/usage/{name}", cast_to=dict)
            assert unknown.value.code == "usage_not_found"


def make_other():
    """Another tenant's key."""
    from billing.services import plans, wallets
    from tenancy.models import Project, Tenant
    from tenancy.services import keys

    tenant = Tenant.objects.create(name="Other", slug="other")
    project = Project.objects.create(tenant=tenant, name="Default")
    wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant.id, "test")
    return keys.create_key(tenant=tenant, project=project, name="other")[1]


async def started(runtime, *, tokens):
    """Return when the one generation that runs has generated so many tokens."""
    await until(lambda: any(live.checkpoint().get("output", 0) >= tokens for live in runtime.requests.live.values()))


async def test_two_hundred_at_once_are_all_answered_on_the_business_plan(tmp_path):
    """The SDK as it comes, with its own retries: who finds no place waits for one, also when none is free for long."""
    async with stage(tmp_path, hang_at=2) as (world, runtime, client):
        async with AsyncOpenAI(api_key=world.secret, base_url=client.base_url) as unmodified:
            asked = (unmodified.chat.completions.create(model="fake", messages=HI) for _ in range(200))
            answering = asyncio.gather(*asked)
            await until(lambda: runtime.requests.gate.waiting >= 200 - 64)
            engine_of(runtime, world).release()
            answers = await answering
        assert {answer.choices[0].message.content for answer in answers} == {"one two three"}
        assert len({answer.id for answer in answers}) == 200
        await settled(runtime)
    await in_database(assert_books, world, records=200)
