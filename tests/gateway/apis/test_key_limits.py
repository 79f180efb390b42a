"""What a key limits beyond its tenant's plan: addresses, models, rates, concurrency, and what it may spend."""

from __future__ import annotations

import asyncio
import ipaddress
from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from billing.limits.types import Bucket
from billing.writer.view import BudgetRow
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.apis.world import COST, PROMPT_COST

CHAT = "/v1/chat/completions"
SAY = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
CREATE = {"type": "response.create", "model": "small", "input": "Hi"}


def networks(*texts):
    return tuple(map(ipaddress.ip_network, texts))


@pytest.mark.parametrize(
    ("allowed", "is_in"),
    [(["127.0.0.0/8"], True), (["::1/128", "127.0.0.1/32"], True), (["192.0.2.0/24"], False), (["::/0"], False)],
)
async def test_a_key_is_for_its_networks(app, world, allowed, is_in):
    world.set_principal(networks=networks(*allowed))
    answer = await ask(app, CHAT, SAY)
    if is_in:
        assert answer.status == 200
    else:
        assert "127.0.0.1" in assert_error(answer, 403, "address_not_allowed")["message"]
        assert_error(await ask(app, "/v1/models"), 403, "address_not_allowed")
        await Socket(app).refused(403, "address_not_allowed")


async def test_models_of_a_key_are_all_that_there_is(app, world):
    world.set_principal(key_models=frozenset({"small"}), allowed_models=frozenset({"small"}))
    listed = (await ask(app, "/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["auto", "small"]
    assert_error(await ask(app, "/v1/models/org/big"), 404, "model_not_found")
    refused = assert_error(await ask(app, CHAT, {**SAY, "model": "org/big"}), 403, "model_not_allowed", param="model")
    assert refused["message"] == "This key may not use the model 'org/big'."


async def test_rates_of_a_key(app, world):
    world.set_principal(key_request_bucket=Bucket("{t}:key_requests:k", "key_requests", 2, 60_000_000, 2))
    answers = [await ask(app, CHAT, SAY) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
    refused = assert_error(answers[2], 429, "key_rate_limit_exceeded")
    assert "This key's rate of requests" in refused["message"]
    assert int(answers[2].headers["retry-after"]) > 0


async def test_credits_a_minute_of_a_key(app, world):
    bucket = Bucket("{t}:key_credits:k", "key_credits", 60, 60_000_000, 60)
    world.set_principal(key_credit_bucket=bucket)
    statuses = [(await ask(app, CHAT, {**SAY, "max_tokens": 2})).status for _ in range(5)]
    assert statuses.count(200) == 60 // COST
    world.set_principal(key_credit_bucket=Bucket("{t}:key_credits:k", "key_credits", 1, 60_000_000, 1))
    assert "this key's burst" in assert_error(await ask(app, CHAT, SAY), 400, "request_exceeds_burst")["message"]


async def test_tokens_a_minute_of_a_key(app, world):
    world.set_principal(key_token_bucket=Bucket("{t}:key_tokens:k", "key_tokens", 100, 60_000_000, 100))
    answer = await ask(app, CHAT, {**SAY, "max_tokens": 2})
    assert answer.headers["x-ratelimit-limit-tokens"] == "100"
    usage = answer.json()["usage"]
    taken = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert taken == 100 - usage["prompt_tokens"] - 2, "the prompt and all of the answer that may come"
    await world.settled()
    again = await ask(app, CHAT, {**SAY, "max_tokens": 2})
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    assert int(again.headers["x-ratelimit-remaining-tokens"]) == (
        100 - (usage["total_tokens"] - cached) - usage["prompt_tokens"] - 2
    ), "the first one was left with what it used"
    world.set_principal(key_token_bucket=Bucket("{t}:key_tokens:k", "key_tokens", 1, 60_000_000, 1))
    assert "this key's burst" in assert_error(await ask(app, CHAT, SAY), 400, "request_exceeds_burst")["message"]


async def test_tokens_a_minute_of_a_plan_refuse_until_they_are_back(app, world):
    world.set_principal(token_bucket=Bucket("{t}:tokens", "tokens", 12, 60_000_000, 12))
    answers = [await ask(app, CHAT, {**SAY, "max_tokens": 2}) for _ in range(4)]
    refused = next(answer for answer in answers if answer.status != 200)
    assert "Your plan's rate of tokens" in assert_error(refused, 429, "rate_limit_exceeded")["message"]
    assert int(refused.headers["retry-after"]) > 0
    world.set_principal(token_bucket=Bucket("{t}:tokens:new", "tokens", 9, 60_000_000, 9))
    longer = await ask(app, CHAT, {**SAY, "max_tokens": 500})
    assert longer.status == 200, "a slice is as long as the burst lets it be"


async def test_concurrency_of_a_key_takes_no_place_of_its_tenants(app, world):
    world.set_principal(key_concurrency=1, concurrency=2)
    world.starting = asyncio.Event()
    first = asyncio.ensure_future(ask(app, CHAT, SAY))
    await world.begun.wait()
    assert_error(await ask(app, CHAT, SAY), 429, "key_concurrency_limit_exceeded")
    assert world.stand.places() == 2  # the tenant's and the key's, of the first alone
    world.starting.set()
    assert (await first).status == 200
    await world.settled()
    assert world.stand.places() == 0
    assert (await ask(app, CHAT, SAY)).status == 200


def limited(world, **limits):
    """Give the key a budget in the writer's memory."""
    today = datetime.now(UTC).date()
    fields = {"day_limit": None, "month_limit": None, "total_limit": None} | limits
    identifier = UUID(int=99)
    row = BudgetRow(
        identifier, world.stand.writer.wallet.id, **fields, held=0, day=today, day_spent=0,
        month=date(today.year, today.month, 1), month_spent=0, total_spent=0,
    )  # fmt: skip
    world.stand.writer.budgets[identifier] = row
    world.set_principal(budget=identifier)
    return row


@pytest.mark.parametrize(
    ("limit", "period"), [("day_limit", "a day"), ("month_limit", "a month"), ("total_limit", "in all")]
)
async def test_what_a_key_may_spend(app, world, limit, period):
    row = limited(world, **{limit: 2 * COST})
    answers = [await ask(app, CHAT, SAY) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    refused = assert_error(answers[2], 402, "key_spend_limit_exceeded")
    assert period in refused["message"]
    assert answers[2].headers["x-should-retry"] == "false"
    await world.settled()
    assert (row.total_spent, row.held) == (2 * COST, 0)


async def test_an_answer_ends_where_the_key_may_spend_no_more(app, world):
    world.set_options(text=" word" * 50)
    row = limited(world, total_limit=PROMPT_COST + 10)
    answer = (await ask(app, CHAT, SAY)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    await world.settled()
    assert row.total_spent <= PROMPT_COST + 10
