"""Remote engines through the whole gateway: what a foreign server ran is what the books say, whatever it does."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from django.db.models import F

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from billing.models import Hold, RateCardVersion, UsageRecord, Wallet
from billing.rating import charge
from billing.services.cards import publish
from billing.writer.apply import apply_now
from billing.writer.operations import Renew, RequestFacts, Reserve
from gateway.generation.sweep import Sweep
from gateway.runtime.engines import FAILURES
from routing.services.catalogue import add_model
from tests.gateway.apis.client import Exchange, ask, assert_error
from tests.gateway.apis.server import with_runtime
from tests.gateway.doubles import CARD, break_circuit
from tests.gateway.world import RATES, assert_books, in_database, make_world, opened, settled
from tests.upstream import Plan, Upstream, serving

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _loopback(settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]


class Stand:
    """A gateway with one remote engine, and the server behind it."""

    def __init__(self, upstream, world, runtime) -> None:
        self.upstream = upstream
        self.world = world
        self.runtime = runtime
        self.application = with_runtime(runtime)

    def chat(self, text="a b c d e f", world=None, **fields):
        body = {"model": "remote", "messages": [{"role": "user", "content": text}]} | fields
        key = (world or self.world).secret
        return Exchange(self.application, "POST", "/v1/chat/completions", body=body, key=key)

    @property
    def breaker(self):
        [entry] = [entry for entry in self.runtime.engines.entries() if entry.deployment.id == self.world.deployment]
        return entry.breaker

    async def books(self, records):
        await settled(self.runtime)
        charged, rows = await in_database(assert_books, self.world, records=records)
        for row in rows:
            classes = {"input": row.input_tokens, "cache_read": row.cache_read_tokens, "output": row.output_tokens}
            assert row.charge == charge({name: n for name, n in classes.items() if n}, CARD, 10_000)
        return charged, rows


@pytest.fixture
def stand(tmp_path):
    @asynccontextmanager
    async def make(dialect="vllm", *, options=None, credit=10_000_000, terms=None, rates=None, **plan):
        async with serving(Upstream(dialect, **plan)) as upstream:

            def prepare():
                world = make_world(credit=credit, terms=terms)
                if rates is not None:
                    publish("fake-card", rates)
                given = upstream.options(kinds=["chat", "embedding"], **(options or {}))
                del given["networks"], given["salt_key"]
                row = add_model(
                    name="remote", kinds=["chat", "embedding"], context_length=8192, rate_card="fake-card",
                    source=upstream.address, backend="openai", options=given,
                )  # fmt: skip
                return replace(world, deployment=row.id)

            world = await in_database(prepare)
            async with opened(tmp_path) as runtime:
                assert await runtime.engines.connected(5)
                yield Stand(upstream, world, runtime)

    return make


async def test_an_answer_is_charged_as_the_server_counted_it(stand):
    async with stand(cached=3) as at:
        answer = await at.chat(stream=True, stream_options={"include_usage": True}).finished()
        *_, (_, usage), (_, done) = answer.events()
        assert done == "[DONE]"
        assert usage["usage"]["prompt_tokens"] == 10
        assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
        charged, [row] = await at.books(1)
        assert (row.input_tokens, row.cache_read_tokens, row.output_tokens, row.exact) == (7, 3, 6, True)
        assert charged == 7 * 10 + 3 * 1 + 6 * 40
        [body] = at.upstream.bodies("/v1/chat/completions")
        assert body["max_tokens"] == 4096
        whole = await at.chat().finished()
        assert whole.json()["choices"][0]["message"]["content"] == "a b c d e f"


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_have_one_hold_and_each_ones_prompt_is_charged(stand, stream):
    async with stand(cached=3, stall_at=3) as at:
        exchange = at.chat(n=2, max_tokens=50, stream=stream, **({"stream_options": USAGE} if stream else {}))
        await at.upstream.until(lambda: len(at.upstream.running) == 2)
        [hold] = await in_database(lambda: list(Hold.objects.all()))
        assert hold.amount == 2 * (10 * 10 + 50 * 40)
        at.upstream.released.set()
        answer = await exchange.finished()
        if stream:
            chunks = [data for _, data in answer.events() if data != "[DONE]"]
            pieces = [(each["index"], each["delta"].get("content", "")) for one in chunks for each in one["choices"]]
            texts = ["".join(text for index, text in pieces if index == number) for number in range(2)]
            usage = chunks[-1]["usage"]
        else:
            texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
            usage = answer.json()["usage"]
        assert texts == ["a b c d e f"] * 2
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 12)
        charged, [row] = await at.books(1)
        assert (row.input_tokens, row.cache_read_tokens, row.output_tokens, row.exact) == (14, 6, 12, True)
        assert charged == 2 * (7 * 10 + 3 * 1 + 6 * 40)


@pytest.mark.parametrize(
    ("dialect", "n", "tier", "status"),
    [
        ("vllm", 1, 15, 200),
        ("vllm", 2, 15, 400),
        ("vllm", 2, 20, 400),
        ("vllm", 2, 21, 200),
        ("vllm", 2, 10, 200),
        ("generic", 2, 2, 400),  # an estimate, which the server may count shorter
    ],
)
async def test_no_prompt_pays_the_price_of_a_longer_one(stand, dialect, n, tier, status):
    """A prompt of ten tokens, on a card that is dearer from `tier` tokens on."""
    dearer = {name: 2 * rate for name, rate in RATES[0].items()}
    async with stand(dialect, rates=RATES | {tier: dearer}) as at:
        answer = await at.chat(n=n).finished()
        if status == 200:
            assert len(answer.json()["choices"]) == n
            return
        assert_error(answer, 400, "invalid_value", param="n")
        assert "apart" in answer.json()["error"]["message"]
        assert not at.upstream.bodies("/v1/chat/completions")
        assert not await in_database(Hold.objects.count)


async def test_a_client_that_leaves_stops_all_answers_and_pays_for_what_it_got(stand):
    async with stand(stall_at=4, cached=9) as at:
        exchange = at.chat(n=2, stream=True)
        await at.upstream.until(lambda: len(at.upstream.running) == 2)
        async with exchange.changed:
            await exchange.changed.wait_for(lambda: exchange.answer.body.count(b' c"') == 2)
        exchange.leave()
        await exchange.finished()
        await at.upstream.until(lambda: len(at.upstream.aborted) == 2)
        charged, [row] = await at.books(1)
        assert (row.input_tokens, row.output_tokens, row.finish, row.exact) == (20, 6, "cancelled", False)
        assert charged == 2 * (10 * 10 + 3 * 40)


async def test_all_that_may_be_used_is_held_at_once(stand):
    async with stand(stall_at=3) as at:
        exchange = at.chat(max_tokens=50, stream=True)
        await exchange.body_has(b" b")
        [hold] = await in_database(lambda: list(Hold.objects.all()))
        assert hold.amount == 10 * 10 + 50 * 40
        at.upstream.released.set()
        await exchange.finished()
        await at.books(1)


async def test_credit_for_seven_tokens_buys_seven(stand):
    async with stand(credit=10 * 10 + 7 * 40 + 39) as at:
        answer = await at.chat(" ".join(["w"] * 6), ignore_eos=True).finished()
        choice = answer.json()["choices"][0]
        assert (choice["finish_reason"], answer.json()["usage"]["completion_tokens"]) == ("length", 7)
        assert choice["sluice_reason"] == "credit_exhausted"
        assert at.upstream.bodies("/v1/chat/completions")[0]["max_tokens"] == 7
        await at.books(1)


async def test_an_answer_is_no_longer_than_the_plan_may_take_at_once(stand):
    """Nothing can be held later, so what the burst doesn't pay for is never asked for; the credit isn't exhausted."""
    async with stand(terms={"credit_burst": 10 * 10 + 8 * 40}) as at:
        answer = await at.chat(ignore_eos=True, max_tokens=50).finished()
        [choice] = answer.json()["choices"]
        assert (choice["finish_reason"], choice.get("sluice_reason")) == ("length", None)
        assert answer.json()["usage"]["completion_tokens"] == 8
        await at.books(1)


async def test_the_operators_limit_bounds_an_answer(stand):
    async with stand(options={"max_output": 5}) as at:
        answer = await at.chat(ignore_eos=True, max_tokens=900).finished()
        [choice] = answer.json()["choices"]
        assert (choice["finish_reason"], choice.get("sluice_reason")) == ("length", None)
        assert answer.json()["usage"]["completion_tokens"] == 5


USAGE = {"include_usage": True}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}


@pytest.mark.parametrize(
    ("text", "form", "told"),
    [
        ('{"b":1}', SCHEMA, "json_schema"),
        ("sure", {"type": "json_object"}, "json_object"),
        ('{"a":1}', SCHEMA, None),
        ("sure", {"type": "text"}, None),
    ],
)
async def test_a_client_is_told_that_a_server_dropped_its_schema(stand, text, form, told):
    async with stand() as at:
        answer = await at.chat(text, response_format=form).finished()
        assert answer.json()["choices"][0]["message"]["content"] == text
        assert answer.headers.get("x-sluice-not-enforced") == told


async def test_a_client_that_leaves_stops_the_server_and_pays_for_what_it_got(stand):
    """What of its prompt vLLM had cached nobody knows then: all of it is charged, as an estimate."""
    async with stand(stall_at=4, cached=9) as at:
        exchange = at.chat(stream=True)
        await exchange.body_has(b" c")
        exchange.leave()
        await exchange.finished()
        await at.upstream.until(lambda: at.upstream.aborted)
        charged, [row] = await at.books(1)
        assert (row.input_tokens, row.output_tokens, row.finish, row.exact) == (10, 3, "cancelled", False)
        assert charged == 10 * 10 + 3 * 40


async def test_a_client_that_leaves_before_the_answer_begins_pays_nothing_but_its_rate_counts_the_prompt(stand):
    """Nothing shows that the server computed any of it; without the rate a tenant had prompts computed for nothing."""
    rate = {"credit_limit": 150, "credit_period_s": 86_400, "credit_burst": 150}
    async with stand(hang_before=True, terms=rate) as at:
        exchange = at.chat()
        await at.upstream.until(lambda: at.upstream.running)
        exchange.leave()
        await exchange.finished()
        await at.upstream.until(lambda: at.upstream.aborted)
        charged, [row] = await at.books(1)
        assert (charged, row.input_tokens, row.exact, row.waived, row.finish) == (0, 0, True, False, "cancelled")
        assert_error(await at.chat().finished(), 429, "rate_limit_exceeded")


async def test_a_client_that_leaves_a_silent_server_says_nothing_for_it(stand):
    """Else impatient clients keep a server that hangs in service, and each of them pays for its prompt."""
    async with stand(hang_before=True) as at:
        [entry] = [entry for entry in at.runtime.engines.entries() if entry.deployment.id == at.world.deployment]
        break_circuit(entry.breaker, FAILURES - 1)
        exchange = at.chat()
        await at.upstream.until(lambda: at.upstream.running)
        exchange.leave()
        await exchange.finished()
        await at.books(1)
        break_circuit(entry.breaker, 1)
        assert entry.obstacle.startswith("circuit open")


@pytest.mark.parametrize(("dialect", "is_exact"), [("vllm", False), ("llamacpp", True), ("generic", False)])
async def test_a_stream_that_dies_is_charged_for_what_arrived(stand, dialect, is_exact):
    async with stand(dialect, die_at=4) as at:
        answer = await at.chat(stream=True).finished()
        assert answer.events()[-1][1]["error"]["code"] == "engine_stopped"
        _, [row] = await at.books(1)
        assert (row.output_tokens, row.exact) == (3, is_exact)


async def test_an_answer_in_one_piece_that_dies_costs_nothing(stand):
    async with stand("generic", die_at=4) as at:
        assert_error(await at.chat().finished(), 503, "engine_stopped")
        charged, [row] = await at.books(1)
        assert (charged, row.finish) == (0, "engine_stopped")


async def test_what_was_only_counted_is_marked_as_an_estimate(stand):
    async with stand("generic", says_usage=False) as at:
        answer = await at.chat().finished()
        assert answer.json()["usage"]["completion_tokens"] == 6
        _, [row] = await at.books(1)
        assert (row.output_tokens, row.exact, row.finish) == (6, False, "stop")


@pytest.mark.parametrize("told", [{"prompt_tokens": 10**6, "completion_tokens": 10**6}, {"completion_tokens": None}])
async def test_wrong_usage_takes_no_more_than_was_held(stand, told):
    async with stand("generic", credit=60 * 10 + 40 * 40, usage=told) as at:
        assert (await at.chat(max_tokens=10).finished()).status == 200
        charged, [row] = await at.books(1)
        assert charged > 0
        assert not row.exact


@pytest.mark.parametrize(
    ("status", "answered", "code"),
    [
        (400, 400, "invalid_request"),
        (422, 400, "invalid_request"),
        (401, 503, "engine_unavailable"),
        (429, 503, "engine_overloaded"),
        (503, 503, "engine_overloaded"),
        (500, 503, "engine_unavailable"),
        (302, 503, "engine_unavailable"),
        (402, 503, "engine_unavailable"),
        (406, 400, "invalid_request"),
        (424, 503, "engine_unavailable"),
    ],
)
async def test_refusals_of_the_server_leave_nothing_held(stand, status, answered, code):
    async with stand(status=status, body=b'{"error": {"message": "because"}}') as at:
        answer = await at.chat(stream=True).finished()
        assert_error(answer, answered, code)
        charged, [row] = await at.books(1)
        assert (charged, row.waived) == (0, status in {424, 500})  # after these something may have run
        assert len(at.upstream.bodies("/v1/chat/completions")) == 1


async def test_a_server_that_asks_its_operator_for_money_is_kept_out_until_it_takes_work_again(stand):
    """It answers at once, so that without a breaker it would get most requests."""
    async with stand(status=402, body=b'{"error": {"message": "no credits left on account acme-prod"}}') as at:
        other = await in_database(make_world)
        for world in (at.world, at.world, other):
            answer = await at.chat(world=world).finished()
            assert_error(answer, 503, "engine_unavailable")
            assert b"acme" not in answer.body
        assert at.breaker.state == "open"


@pytest.mark.parametrize("status", [402, 424, 500, 502])
async def test_what_fails_one_tenant_takes_a_server_from_nobody_else(stand, status):
    """Three prompts of one tenant that the server answered with 500 were a 503 for everybody."""
    async with stand() as at:
        other = await in_database(make_world)
        at.upstream.plans = [Plan(status=status)] * 2 * FAILURES
        for _ in range(2 * FAILURES):
            assert_error(await at.chat().finished(), 503, "engine_unavailable")
        assert at.breaker.state == "closed"
        assert (await at.chat(world=other).finished()).status == 200


@pytest.mark.parametrize("events", [b"", b'data: {"choices": [{"delta": {"content": ""}}]}\n\n'], ids=["1st", "2nd"])
@pytest.mark.parametrize(
    ("dialect", "error", "answer"),
    [
        ("sglang", {"error": {"message": "no such grammar", "code": 400}}, (400, "invalid_request")),
        ("tgi", {"error": "Input validation error: no", "error_type": "validation"}, (400, "invalid_request")),
        ("tgi", {"error": {"message": "Model is overloaded", "http_status_code": 422}}, (503, "engine_overloaded")),
        ("vllm", {"error": {"message": "it may be anything", "code": 400}}, (503, "engine_unavailable")),
    ],
)
async def test_requests_that_a_server_refuses_in_its_stream_take_it_from_nobody_else(
    stand, dialect, error, answer, events
):
    """Three of them opened the breaker of a server that is well."""
    async with stand(dialect) as at:
        body = events + b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"
        at.upstream.plans = [Plan(body=body, headers={"content-type": "text/event-stream"})] * FAILURES
        for _ in range(FAILURES):
            assert_error(await at.chat().finished(), *answer)
        assert at.breaker.state == "closed"
        assert (await at.chat().finished()).status == 200
        await settled(at.runtime)
        assert await in_database(lambda: Wallet.objects.filter(held__gt=0).count()) == 0
        _, rows = await at.books(FAILURES + 1)
        assert [row.waived for row in rows].count(True) == (FAILURES if dialect == "vllm" else 0)  # which may have run


async def test_a_filter_in_front_of_a_server_takes_it_from_nobody_else(stand):
    async with stand() as at:
        at.upstream.plans = [Plan(status=406, body=b"not this prompt")] * FAILURES
        for _ in range(FAILURES):
            assert_error(await at.chat().finished(), 400, "invalid_request")
        assert at.breaker.state == "closed"
        assert (await at.chat().finished()).status == 200


async def test_fields_that_the_server_does_not_know_are_named(stand):
    async with stand("tgi") as at:
        answer = await at.chat(top_k=5).finished()
        assert_error(answer, 400, "unsupported_parameter", param="top_k")
        assert not at.upstream.bodies("/v1/chat/completions")


async def test_embeddings(stand):
    async with stand() as at:
        body = {"model": "remote", "input": ["one two", "three"]}
        answer = await ask(at.application, "/v1/embeddings", body, key=at.world.secret)
        assert [len(item["embedding"]) for item in answer.json()["data"]] == [8, 8]
        charged, [row] = await at.books(1)
        assert (row.input_tokens, charged) == (3, 30)


async def test_vectors_that_make_no_sense_are_waived(stand):
    async with stand(body=b'{"data": []}') as at:
        answer = await ask(at.application, "/v1/embeddings", {"model": "remote", "input": "one"}, key=at.world.secret)
        assert_error(answer, 503, "engine_unavailable")
        charged, [row] = await at.books(1)
        assert (charged, row.waived) == (0, True)


async def test_mixed_load_with_clients_that_leave_adds_up(stand):
    async with stand(options={"concurrency": 3}, terms={"concurrency": 16}) as at:
        plans = [Plan(), Plan(die_at=3), Plan(at_once=2), Plan(status=429), Plan(in_bytes=7), Plan(cached=2)]
        at.upstream.plans = [plans[number % len(plans)] for number in range(30)]

        async def one(number):
            exchange = at.chat(f"{number} b c d e f g h", stream=True)
            if number % 4 == 0:
                for _ in range(number):
                    await asyncio.sleep(0)
                exchange.leave()
            return await exchange.finished()

        await asyncio.gather(*(one(number) for number in range(30)))
        await settled(at.runtime)
        assert at.upstream.most_running <= 3
        rows = await in_database(lambda: list(UsageRecord.objects.all()))
        charged, _ = await at.books(len(rows))
        for row in rows:
            if row.charge:
                ran = at.upstream.served[row.request.hex]
                assert row.output_tokens <= ran["completion"]
                if row.finish in {"stop", "length"}:
                    assert row.output_tokens == ran["completion"]
        assert charged > 0
        assert not at.upstream.running


async def test_after_a_gateways_death_its_checkpoint_is_charged_as_an_estimate(stand):
    async with stand() as at:

        def orphan():
            request, owner = uuid7(), uuid7()
            reserve = Reserve(
                request=request, wallet=at.world.wallet.id, amount=3000, least=1, owner=owner,
                deployment=at.world.deployment, card_version=RateCardVersion.objects.get().id,
                tenant=at.world.tenant.id, project=at.world.project.id, api_key=at.world.key_id, model="remote",
                facts=RequestFacts("responses", "chat", streamed=True),
            )  # fmt: skip
            apply_now([reserve, Renew(owner, {request: {"input": 10, "output": 4}})])
            Hold.objects.update(lease_until=F("reserved_at"))
            return request

        request = await in_database(orphan)
        threads = DatabaseThreads(1)
        sweep = Sweep(engines_of=at.runtime.engines.of, submit=at.runtime.writer.submit, threads=threads)
        assert await sweep.turn() == {"estimated": 1}
        threads.close()
        charged, [row] = await at.books(1)
        assert (row.request, row.exact, row.finish) == (request, False, "lost")
        assert charged == 10 * 10 + 4 * 40


async def test_two_tenants_share_no_prefix(stand):
    """The same prompt again is cached for the tenant that sent it, and for nobody else."""
    async with stand(cached=-1) as at:
        other = await in_database(make_world)

        async def cached(key):
            body = {"model": "remote", "messages": [{"role": "user", "content": "secret plan"}]}
            answer = await ask(at.application, "/v1/chat/completions", body, key=key)
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [await cached(at.world.secret), await cached(at.world.secret)] == [0, 5]
        assert await cached(other.secret) == 0
        salts = {body["cache_salt"] for body in at.upstream.bodies("/v1/chat/completions")}
        assert len(salts) == 2
        assert str(at.world.tenant.id) not in json.dumps(at.upstream.seen)


async def test_the_deployment_says_that_prefixes_are_shared(stand):
    async with stand("tgi") as at:
        info = at.runtime.engines.get(at.world.deployment).info
        assert info.shares_prefixes
        assert info.details["prefix caches"] == "shared between tenants"
    assert await in_database(lambda: Wallet.objects.filter(held__gt=0).count()) == 0
