"""The list of models, the probes and the count of answers."""

from __future__ import annotations

import pytest

from gateway.edge.http import runtime_of
from gateway.errors.refusal import Refusal
from tests.gateway.edge.client import ask, assert_error
from tests.gateway.edge.fakes import KEY, principal


async def test_list_has_auto_context_and_prices(app):
    cards = (await ask(app, "/v1/models")).json()
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == ["auto", "embedder", "org/big", "small"]
    auto, small = cards["data"][0], cards["data"][-1]
    assert (auto["context_length"], auto["pricing"]) == (8192, None)
    assert (small["context_length"], small["kinds"], small["created"]) == (2048, ["chat"], 1_700_000_000)
    assert small["pricing"]["request_fee"] == "0.000007"
    prices = small["pricing"]["tiers"][0]["credits_per_million"]
    assert (prices["input"], prices["cache_read"], prices["output"]) == ("1", "1", "2")


async def test_list_shows_what_the_plan_allows_at_its_prices(app, world):
    world.runtime.principals.keys[KEY] = principal(allowed_models=frozenset({"small"}), multiplier_bp=15_000)
    cards = (await ask(app, "/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["auto", "small"]
    assert cards[1]["pricing"]["tiers"][0]["credits_per_million"]["input"] == "1.5"
    assert cards[1]["pricing"]["request_fee"] == "0.000011"


async def test_model_is_found_by_a_name_with_a_slash(app):
    assert (await ask(app, "/v1/models/org/big")).json()["id"] == "org/big"
    assert (await ask(app, "/v1/models/auto")).json()["id"] == "auto"


async def test_unknown_model_is_404(app):
    assert_error(await ask(app, "/v1/models/huge"), 404, "model_not_found", param="model")


async def test_models_need_a_key(app):
    assert_error(await ask(app, "/v1/models", key=None), 401, "missing_api_key")


async def test_probes_need_no_key(app, world):
    assert (await ask(app, "/healthz", key=None)).json() == {"status": "ok"}
    assert (await ask(app, "/readyz", key=None)).status == 200
    world.runtime.checks["deployments"] = "no deployment is ready"
    answer = await ask(app, "/readyz", key=None)
    assert answer.status == 503
    assert answer.json()["checks"] == {"database": "ok", "deployments": "no deployment is ready"}
    assert answer.json()["deployments"] == {"small": "ready"}


async def test_answers_are_counted_by_route_and_status(app, world):
    await ask(app, "/v1/models/small")
    await ask(app, "/v1/made-up-by-a-client")
    await ask(app, "/v1/usage/made-up")
    await ask(app, "/anything/made-up")
    text = (await ask(app, "/metrics", key=None)).body.decode()
    assert 'sluice_requests_total{endpoint="/v1/models/{id}",status="200"} 1.0' in text
    for route in ("/v1/*", "/v1/usage/{id}", "control"):
        assert f'sluice_requests_total{{endpoint="{route}",status="404"}} 1.0' in text
    assert "made-up" not in text


def test_gateway_that_is_starting_refuses():
    with pytest.raises(Refusal) as starting:
        runtime_of({})
    assert (starting.value.status, starting.value.code) == (503, "starting")
