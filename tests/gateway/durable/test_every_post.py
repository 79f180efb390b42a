"""``Idempotency-Key`` on every POST, by the tables of routes, and what it means on those that run nothing."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest
from django.urls import URLPattern, get_resolver

from billing.models import UsageRecord
from gateway.asgi import http_routes_of
from gateway.durable import answers
from gateway.durable.models import KeptAnswer
from tenancy.services import admin_keys
from tests.gateway.apis.client import Exchange, assert_error
from tests.gateway.apis.responses.test_background import ENDED
from tests.gateway.batches.conftest import Desk, chat_line
from tests.gateway.durable.conftest import chat
from tests.gateway.world import assert_books, in_database
from tests.waiting import until

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]

BAD_KEY = "x" * 256
PATHS = sorted({pattern for route in http_routes_of() if (pattern := str(route.pattern)).startswith("v1/")})
PAGES = ("django.", "allauth.", "control.admin.", "control.accounts.", "control.console.", "billing.admin")
HI = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
COUNTED = {
    "/v1/responses/input_tokens": ({"model": "fake", "input": "Hi"}, {"model": "fake", "input": "Ho"}),
    "/v1/messages/count_tokens": (HI, HI | {"system": "Be kind"}),
}
UNKEPT = {
    "/v1/tokenize": {"model": "fake", "prompt": "Hi you", "return_token_strs": True},
    "/v1/detokenize": {"model": "fake", "tokens": [1, 2]},
    "/v1/chat/completions/quote": HI,
    "/v1/messages/quote": HI | {"max_tokens": 9},
    "/v1/responses/quote": {"model": "fake", "input": "Hi"},
    "/v1/completions/quote": {"model": "fake", "prompt": "Hi"},
    "/v1/embeddings/quote": {"model": "fake", "input": "Hi"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_every_post_of_the_data_plane_looks_at_the_key(gateway, path):
    """A path that was forgotten would answer, or find something else wrong."""
    async with gateway(tokens=1) as bench:
        answer = await bench.ask({}, key=BAD_KEY, path="/" + re.sub(r"<[^>]+>", "x", path)).finished()
        if answer.status != 405 and f"/{path}" not in UNKEPT:
            assert answer.status == 400
            assert b"An idempotency key has 1 to 255" in answer.body


def views(patterns, before=""):
    """Every view of the control plane with its path, but for pages, whose forms belong to a session."""
    for pattern in patterns:
        address = before + str(pattern.pattern)
        if not isinstance(pattern, URLPattern):
            yield from views(pattern.url_patterns, address)
        elif not pattern.callback.__module__.startswith(PAGES):
            yield address, pattern.callback


def test_every_post_of_the_management_apis_looks_at_the_key(acme):
    client = acme.client()
    _, admin = admin_keys.create_admin_key(tenant=acme.tenant, name="terraform")
    asked = set()
    for address, view in views(get_resolver().url_patterns):
        is_api = hasattr(view, "view_class") or hasattr(view, "cls")
        if not is_api or not hasattr(getattr(view, "cls", None) or view.view_class, "post"):
            continue
        path = "/" + re.sub(r"<[^>]+>", str(acme.project.id), address).lstrip("^")
        if path.startswith("/api/v1/operator/"):  # answers a member 403 whatever they send
            continue
        headers = {"idempotency-key": BAD_KEY}
        if path.startswith("/v1/organization"):
            headers["authorization"] = f"Bearer {admin}"
        answer = client.post(path, {}, content_type="application/json", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_idempotency_key"), path
        asked.add(path.split("/")[1])
    assert asked == {"api", "v1"}


@pytest.mark.parametrize("path", COUNTED)
async def test_what_runs_nothing_is_answered_once_too(gateway, path):
    mine, other = COUNTED[path]
    async with gateway(tokens=1) as bench:
        first = await bench.ask(mine, path=path).finished()
        again = await bench.ask(mine, path=path).finished()
        assert (first.status, again.body) == (200, first.body)
        assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
        refused = await bench.ask(other, path=path).finished()
        assert refused.status == 422
    assert not await in_database(UsageRecord.objects.exists)


@pytest.mark.parametrize("path", UNKEPT)
async def test_tokens_which_cost_nothing_are_not_kept(gateway, path):
    async with gateway(tokens=1) as bench:
        first, again = [await bench.ask(UNKEPT[path], path=path).finished() for _ in range(2)]
        assert (first.status, again.body) == (200, first.body)
        assert "idempotency-replayed" not in again.headers
    assert not await in_database(KeptAnswer.objects.unscoped().exists)


async def test_a_batch_is_cancelled_once_under_a_key(gateway):
    async with gateway(tokens=1) as bench:
        batch = await in_database(Desk(bench.world).begin, [chat_line(1)])
        path = f"/v1/batches/batch_{batch.id.hex}/cancel"
        first = await bench.ask({}, path=path).finished()
        again = await bench.ask({}, path=path).finished()
        assert (first.status, first.json()["status"], again.body) == (200, "cancelling", first.body)
        assert_error(await bench.ask({"a": 1}, path=path).finished(), 422, "idempotency_key_reused")
        unknown = bench.ask({}, path=path.replace(batch.id.hex, "0" * 32), key="k2")
        assert_error(await unknown.finished(), 404, "batch_not_found")


async def test_a_response_is_cancelled_once_under_a_key(gateway):
    body = {"model": "fake", "input": "Hi", "background": True, "store": True}
    async with gateway(tokens=20, hang_at=10) as bench:
        made = (await bench.ask(body, path="/v1/responses", key=None).finished()).json()
        await bench.engine.hanging()
        path = f"/v1/responses/{made['id']}/cancel"
        first, again = [await bench.ask({}, path=path).finished() for _ in range(2)]
        assert (first.status, first.json()["status"], again.body) == (200, "cancelled", first.body)
        assert again.headers["idempotency-replayed"] == "true"
    await in_database(assert_books, bench.world, records=1)


async def test_a_response_in_the_background_that_nobody_reads_is_begun_once(gateway):
    """Its events were given up with their last reader: the same key then began, and charged, another response."""
    body = {"model": "fake", "input": "Hi", "background": True, "store": True, "stream": True}
    async with gateway(tokens=20, hang_at=10, terms={"resume_s": 0}) as bench:
        first = bench.ask(body, path="/v1/responses")
        await first.body_has(b"response.output_text.delta")
        outer = next(one for one in bench.runtime.replays._keepers.values() if one._grace is not None)
        first.leave()
        await asyncio.gather(first.task, return_exceptions=True)
        await outer._end_without_readers()
        second = bench.ask(body, path="/v1/responses")
        await second.body_has(b"response.output_text.delta")
        bench.engine.release()
        answer = await second.finished()
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.events()[-1][1]["response"]["status"] in ENDED
    await in_database(assert_books, bench.world, records=1)


async def test_an_answer_that_one_has_again_takes_a_request_of_the_rate_and_no_credit(gateway):
    terms = {"request_limit": 3, "request_burst": 3, "request_period_s": 36_000}
    async with gateway(tokens=3, terms=terms) as bench:
        first = await bench.ask(chat()).finished()
        again = await bench.ask(chat()).finished()
        assert again.body == first.body
        assert (first.headers["x-ratelimit-remaining-requests"], again.headers["x-ratelimit-remaining-requests"]) == (
            "2",
            "1",
        )
        assert (await bench.ask(chat()).finished()).status == 200
        error = assert_error(await bench.ask(chat()).finished(), 429, "rate_limit_exceeded")
        assert "requests" in error["message"]
    await in_database(assert_books, bench.world, records=1)


async def test_nothing_of_an_answer_is_read_for_who_has_no_request_left(gateway, monkeypatch):
    terms = {"request_limit": 2, "request_burst": 2, "request_period_s": 36_000}
    opened, unsealing = [], answers.unseal_bytes
    monkeypatch.setattr(answers, "unseal_bytes", lambda data: opened.append(len(data)) or unsealing(data))
    async with gateway(tokens=3, terms=terms) as bench:
        for _ in range(2):
            assert (await bench.ask(chat()).finished()).status == 200
        assert len(opened) == 1
        for _ in range(3):
            assert_error(await bench.ask(chat()).finished(), 429, "rate_limit_exceeded")
        assert len(opened) == 1


async def test_answers_count_as_their_tenants_as_long_as_they_are_read_again(gateway):
    async with gateway(tokens=50) as bench:
        kept = bench.runtime.replays._bytes
        first = await bench.ask(chat(stream=True)).finished()
        kept.most = len(first.body)
        slow = bench.ask(chat(stream=True))
        async with slow.changed, asyncio.timeout(120):  # its client takes nothing
            await until(lambda: kept.taken(bench.world.tenant.id) > kept.most // 2)
            assert_error(await bench.ask(chat(stream=True)).finished(), 429, "too_much_kept")
        assert (await slow.finished()).body == first.body
        assert not len(kept)
        kept.most = 10  # one alone is read however large it is
        assert (await bench.ask(chat(stream=True)).finished()).body == first.body


async def test_what_is_kept_of_a_response_in_the_background_is_deleted_with_it(gateway):
    """Its events stand under the key too; a response may be deleted before they are stored, or after."""
    body = {"model": "fake", "input": "Hi", "background": True, "store": True, "stream": True}
    async with gateway(tokens=20, hang_at=10) as bench:
        exchanges = [bench.ask(body, path="/v1/responses", key=key) for key in ("before", "after")]
        for exchange in exchanges:
            await exchange.body_has(b"response.output_text.delta")
        paths = [f"/v1/responses/{exchange.answer.events()[0][1]['response']['id']}" for exchange in exchanges]
        before, after = (partial(Exchange, bench.app, "DELETE", path, key=bench.world.secret) for path in paths)
        assert (await before().finished()).status == 200
        bench.engine.release()
        for exchange in exchanges:
            await exchange.finished()
        assert (await after().finished()).status == 200
        for key in ("before", "after"):
            gone = await bench.ask(body, path="/v1/responses", key=key).finished()
            assert (gone.status, gone.json()["error"]["code"]) == (404, "response_not_found")
