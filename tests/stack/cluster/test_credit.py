"""Credit and keys at their end, through the whole stack."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from decimal import Decimal

import openai
import pytest

from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

MODEL = "word-chat"
PROMPT = [{"role": "user", "content": "go on"}]


@pytest.fixture(scope="module")
def client_of(stack):
    """Makes a client with a key; all are closed behind the last test."""
    with contextlib.ExitStack() as clients:
        base_url = f"{stack.base_url}/v1"
        yield lambda key: clients.enter_context(
            openai.OpenAI(api_key=key, base_url=base_url, max_retries=0, timeout=60)
        )


def rates(client, model=MODEL):
    """µcr per token of each class, from the prices that the API shows."""
    pricing = client.models.retrieve(model).model_extra["pricing"]
    assert (pricing["request_fee"], len(pricing["tiers"])) == ("0", 1)
    return {name: Decimal(price) for name, price in pricing["tiers"][0]["credits_per_million"].items()}


def manage(stack, key, path, body=None):
    """Call the management API and return its answer."""
    page = ask(f"{stack.base_url}/api/v1/{path}", body, key=key)
    assert page.status < 300, page.text
    return page.json


def wallet_of(stack, tenant):
    """What the management API says is posted and held, in µcr."""
    wallet = manage(stack, tenant["key"], "wallet/")
    return {name: wallet[name]["credits_micro"] for name in ("posted", "held")}


def refused(call, **arguments):
    """The error that a call ends with."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(**arguments)
    return caught.value


@pytest.fixture(scope="module")
def hundred(stack, client_of):
    """What the prompt and 100 tokens of an answer cost, in µcr."""
    probing = client_of(stack.tenants["max"]["key"])
    prompt = probing.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1).usage.prompt_tokens
    price = rates(probing)
    assert price["output"] == 11
    return int(prompt * price["input"] + 100 * price["output"])


@pytest.fixture(scope="module")
def tenants(stack, hundred):
    """Tenants by slug, each with credit for one test."""
    credit = {"hundred-0": hundred, "hundred-10": hundred + 10, "responses": 1000, "crowd": 20_000, "gone": 100_000}
    return stack.script("tenants", credit, {})


@pytest.mark.parametrize("rest", [0, 10])
def test_credit_for_100_tokens_buys_100_of_1000(stack, tenants, hundred, rest, client_of):
    """`rest` µcr more buy no further token (one costs 11): they stay."""
    tenant = tenants[f"hundred-{rest}"]
    client = client_of(tenant["key"])
    stream = client.chat.completions.create(
        model=MODEL, messages=PROMPT, max_tokens=1000, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    last = [chunk.choices[0] for chunk in chunks if chunk.choices][-1]
    usage = chunks[-1].usage
    assert (last.finish_reason, last.model_extra["sluice_reason"]) == ("length", "credit_exhausted")
    assert text == ("word " * 20)
    assert usage.completion_tokens == 100
    assert usage.credits_micro == hundred
    assert wallet_of(stack, tenant) == {"posted": rest, "held": 0}
    for more in ({}, {"stream": True}, {"max_tokens": 1}):
        error = refused(client.chat.completions.create, model=MODEL, messages=PROMPT, **more)
        assert (error.status_code, error.code) == (402, "credit_balance_exhausted")
        assert error.response.headers["x-should-retry"] == "false"
    assert wallet_of(stack, tenant) == {"posted": rest, "held": 0}


def test_responses_say_the_same_of_credit_that_ran_out(stack, tenants, client_of):
    tenant = tenants["responses"]
    answer = client_of(tenant["key"]).responses.create(model=MODEL, input="go on", max_output_tokens=1000)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.incomplete_details.model_extra["sluice_reason"] == "credit_exhausted"
    left = 1000 - answer.usage.credits_micro
    assert 0 <= left < 11
    assert wallet_of(stack, tenant) == {"posted": left, "held": 0}


def test_many_at_once_never_take_a_wallet_below_zero(stack, tenants, client_of):
    """Sixteen streams share credit for some of them."""
    tenant = tenants["crowd"]
    client = client_of(tenant["key"])

    def one(_):
        try:
            answer = client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=400)
        except openai.APIStatusError as error:
            return error.code, 0
        return answer.choices[0].finish_reason, answer.usage.credits_micro

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(one, range(16)))
    assert {"credit_balance_exhausted", "length"} >= {reason for reason, _ in ends}
    wallet = wallet_of(stack, tenant)
    assert wallet["held"] == 0
    assert wallet["posted"] == 20000 - sum(charge for _, charge in ends)
    assert wallet["posted"] >= 0


def until_refused(client):
    """Ask until the key is refused, which gateways follow within a second, and return the error (503 while the
    catalogue can't be read is none); bounded by the test's timeout.
    """
    while True:
        try:
            client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1)
        except openai.APIStatusError as error:
            if error.status_code != 503:
                return error


def test_a_key_made_and_revoked_through_the_api_opens_and_shuts_at_once(stack, client_of):
    operator = stack.tenants["business"]["admin_key"]
    made = manage(stack, operator, "keys/", {"name": "short-lived"})
    client = client_of(made["secret"])
    assert client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1).usage.completion_tokens == 1
    manage(stack, operator, f"keys/{made['id']}/revoke/", {})
    error = until_refused(client)
    assert (error.status_code, error.code) == (401, "api_key_revoked")
    assert error.body["request_id"] == error.response.headers["x-request-id"]


def test_an_expired_key_is_refused_by_itself(stack, client_of):
    expiring = stack.tenant("expiring", 100_000)["expiring"]
    client = client_of(expiring["key"])
    while True:
        begun = time.time()
        try:
            client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1)
        except openai.AuthenticationError as error:
            refusal = error
            break
        assert begun < expiring["at"]
    assert refusal.code == "api_key_expired"
    assert time.time() >= expiring["at"]


def test_keys_of_a_deactivated_tenant_are_refused(stack, tenants, client_of):
    tenant = tenants["gone"]
    client = client_of(tenant["key"])
    client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1)
    stack.script("deactivate", "gone")
    error = until_refused(client)
    assert error.status_code in {401, 403}
