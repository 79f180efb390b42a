"""What a key limits beyond its tenant's plan: addresses, models, rates, concurrency, and what it may spend."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from billing.limits.types import Bucket
from billing.writer.operations import Bearing, BudgetTerms
from billing.writer.view import Count
from gateway.apis.usage.endpoint import rate_limit_of
from gateway.generation.credit import end_user_digest
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


@pytest.mark.parametrize(("limit", "told"), [(1, (1, "60s")), (None, (2_000, "86400s")), (2, (2_000, "86400s"))])
async def test_the_rate_that_a_key_is_told_is_the_lower_one(world, limit, told):
    own = None if limit is None else Bucket("{t}:key_requests:k", "key_requests", limit, 60_000_000, limit)
    plan = Bucket("{t}:requests", "requests", 2_000, 86_400_000_000, 2_000)
    shown = rate_limit_of(replace(world.stand.principal, request_bucket=plan, key_request_bucket=own))
    assert (shown.requests, shown.interval) == told


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


def limited(world, limit, *, window="total", scope="key", **terms):
    """Give the principal a budget in the writer's memory, and return what counts in its window."""
    own = BudgetTerms(1, window, 0, "UTC", "mine", scope, **terms)
    count = Count(0, 0, limit)
    wallet = world.stand.writer.wallet
    wallet.windows[Bearing((own,)).windows(datetime.now(UTC))] = count
    world.set_principal(budgets=Bearing((own,)))
    return lambda: next(iter(wallet.windows.values()))


@pytest.mark.parametrize(
    ("window", "words"), [("day", "a day"), ("week", "a week"), ("month", "a month"), ("total", "in all")]
)
async def test_what_a_key_may_spend(app, world, window, words):
    counted = limited(world, 2 * COST, window=window)
    answers = [await ask(app, CHAT, SAY) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    refused = assert_error(answers[2], 402, "key_spend_limit_exceeded")
    assert f"of the budget “mine” for this key {words}." in refused["message"]
    assert ("It resets at 20" in refused["message"]) is (window != "total")
    assert answers[2].headers["x-should-retry"] == "false"
    await world.settled()
    assert (counted().spent, counted().held) == (2 * COST, 0)


async def test_a_budget_of_others_than_the_key_has_a_code_of_its_own(app, world):
    limited(world, PROMPT_COST - 1, window="day", scope="project")
    refused = assert_error(await ask(app, CHAT, SAY), 402, "budget_exceeded")
    assert "for the project a day. It resets at" in refused["message"]


@pytest.mark.parametrize(
    ("terms", "status"),
    [
        ({"scope": "models", "subject": "org/big\nsmall"}, 402),
        ({"scope": "models", "subject": "org/big"}, 200),
        ({"scope": "end_user", "subject": "of another"}, 200),
    ],
)
async def test_budgets_of_models_and_end_users_bear_on_their_requests_alone(app, world, terms, status):
    limited(world, PROMPT_COST - 1, **terms)
    assert (await ask(app, CHAT, SAY)).status == status


async def test_a_budget_of_an_end_user_bears_on_their_requests(app, world):
    limited(world, PROMPT_COST - 1, scope="end_user", subject=end_user_digest(world.stand.principal.tenant, "ada"))
    assert_error(await ask(app, CHAT, {**SAY, "user": "ada"}), 402, "budget_exceeded")
    assert (await ask(app, CHAT, {**SAY, "user": "bob"})).status == 200


async def test_an_answer_ends_where_the_key_may_spend_no_more(app, world):
    world.set_options(text=" word" * 50)
    counted = limited(world, PROMPT_COST + 10)
    answer = (await ask(app, CHAT, SAY)).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["sluice_reason"]) == ("length", "key_spend_limit_exceeded")
    await world.settled()
    assert counted().spent <= PROMPT_COST + 10
