"""The list of models, the probes and the count of answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest

from gateway.errors.refusal import Refusal
from gateway.http.listener.server import gateway_server
from gateway.http.request import runtime_of
from gateway.runtime.metrics import CONTENT_TYPE, Metrics
from gateway.runtime.readiness import operator_token
from routing.catalogue import RuleEntry
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.apis.server import lifespan_with
from tests.gateway.apis.world import MODELS
from tests.gateway.doubles import make_catalogue
from tests.services.ports import lease_port


async def test_head_is_answered_as_get(app):
    for path in ("/v1/models", "/v1/models/small", "/v1/models/none", "/healthz"):
        head, get = [await ask(app, path, method=method) for method in ("HEAD", "GET")]
        assert head.status == get.status
        assert head.headers["content-type"] == get.headers["content-type"]


async def test_list_has_auto_context_and_prices(app):
    cards = (await ask(app, "/v1/models")).json()
    assert cards["object"] == "list"
    assert [card["id"] for card in cards["data"]] == ["auto", "embedder", "org/big", "ranker", "small", "sorter"]
    auto, small = cards["data"][0], cards["data"][-2]
    assert (auto["context_length"], auto["pricing"]) == (8192, None)
    assert (small["context_length"], small["kinds"], small["created"]) == (2048, ["chat"], 1_700_000_000)
    assert small["pricing"]["request_fee"] == "0.000007"
    prices = small["pricing"]["tiers"][0]["credits_per_million"]
    assert (prices["input"], prices["cache_read"], prices["output"]) == ("1", "1", "2")


async def test_a_card_says_what_a_model_can(app, world):
    world.set_options(thinks=True, guides=True)
    world.let_see("small", "data")
    cards = {card["id"]: card for card in (await ask(app, "/v1/models")).json()["data"]}
    small, big, embedder, auto = cards["small"], cards["org/big"], cards["embedder"], cards["auto"]
    assert small["capabilities"] == {
        "tools": True, "reasoning": True, "structured_outputs": True, "vision": True, "embeddings": False,
    }  # fmt: skip
    assert small["input_modalities"] == ["text", "image"]
    assert (small["max_output_tokens"], small["max_model_len"]) == (2047, 2048)
    assert big["capabilities"]["tools"]
    assert not big["capabilities"]["reasoning"]
    assert (embedder["output_modalities"], embedder["max_output_tokens"]) == (["embedding"], None)
    assert embedder["capabilities"]["embeddings"]
    assert not embedder["capabilities"]["tools"]
    assert auto["capabilities"] == {
        "tools": True, "reasoning": False, "structured_outputs": False, "vision": True, "embeddings": True,
    }  # fmt: skip
    assert auto["max_output_tokens"] == 8191


async def test_a_model_can_what_each_of_its_replicas_can(app, world):
    world.set_options(ready=False)  # nobody knows
    small = (await ask(app, "/v1/models/small")).json()
    assert not any(small["capabilities"].values())
    assert small["context_length"] == 2048


async def test_list_shows_what_the_plan_allows_at_its_prices(app, world):
    world.set_principal(allowed_models=frozenset({"small"}), multiplier_bp=15_000)
    cards = (await ask(app, "/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["auto", "small"]
    assert cards[1]["pricing"]["tiers"][0]["credits_per_million"]["input"] == "1.5"
    assert cards[1]["pricing"]["request_fee"] == "0.000007"


async def test_the_context_is_the_one_that_is_served(app, world):
    for model, context in (("small", 512), ("org/big", 1_000_000)):
        engine = world.stand.engine_of(model)
        engine.options = replace(engine.options, max_context=context)
    cards = {card["id"]: card["context_length"] for card in (await ask(app, "/v1/models")).json()["data"]}
    assert cards["small"] == 512
    assert cards["auto"] == cards["org/big"] == 8192


async def test_model_is_found_by_a_name_with_a_slash(app):
    assert (await ask(app, "/v1/models/org/big")).json()["id"] == "org/big"
    assert (await ask(app, "/v1/models/auto")).json()["id"] == "auto"


async def test_name_with_a_percent_sign_is_taken_as_it_is(app, world):
    odd = replace(MODELS[0], name="50%25")
    world.runtime.catalogue.snapshot = replace(world.runtime.catalogue.snapshot, catalogue=make_catalogue(*MODELS, odd))
    assert (await ask(app, "/v1/models/50%25")).json()["id"] == "50%25"  # the path is decoded already


@pytest.mark.parametrize(("target", "served"), [("small", "small"), ("auto:chat", "org/big")])
async def test_an_alias_is_answered_by_its_target(app, world, target, served):
    rule = RuleEntry("chats", "", "chat", None, None, (("org/big", 1),))
    catalogue = replace(make_catalogue(*MODELS, rules=(rule,)), aliases={"gpt-4o": target})
    world.runtime.engines.follow(catalogue.all_deployments())
    await world.runtime.engines.look()
    world.runtime.catalogue.snapshot = replace(world.runtime.catalogue.snapshot, catalogue=catalogue)
    hello = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
    assert (await ask(app, "/v1/chat/completions", hello)).json()["model"] == served
    assert (await ask(app, "/v1/tokenize", {"model": "gpt-4o", "prompt": "Hi"})).status == 200
    world.set_principal(allowed_models=frozenset({"ranker"}))
    assert (await ask(app, "/v1/chat/completions", hello)).status in {403, 404}


async def test_an_alias_shows_its_target(app, world):
    catalogue = replace(world.runtime.catalogue.snapshot.catalogue, aliases={"gpt-4o": "small"})
    world.runtime.catalogue.snapshot = replace(world.runtime.catalogue.snapshot, catalogue=catalogue)
    assert (await ask(app, "/v1/models/gpt-4o")).json()["id"] == "small"


async def test_unknown_model_is_404(app):
    assert_error(await ask(app, "/v1/models/huge"), 404, "model_not_found", param="model")


async def test_models_need_a_key(app):
    assert_error(await ask(app, "/v1/models", key=None), 401, "missing_api_key")


@pytest.fixture
def checks(world, monkeypatch):
    """What the runtime says of itself."""
    found = {"database": "", "deployments": ""}

    async def readiness():
        return found

    monkeypatch.setattr(world.runtime, "readiness", readiness)
    return found


async def test_probes_need_no_key(app, checks):
    assert (await ask(app, "/healthz", key=None)).json() == {"status": "ok"}
    assert (await ask(app, "/readyz", key=None)).status == 200
    answer = await ask(app, "/health", key=None)
    assert (answer.status, answer.body) == (200, b"")
    checks["deployments"] = "no deployment is ready"
    answer = await ask(app, "/readyz", key=None)
    assert answer.status == 503
    assert answer.json()["checks"] == {"database": "ok", "deployments": "failing"}
    assert answer.json()["deployments"] == {
        "small-1": "ready",
        "org/big-1": "ready",
        "embedder-1": "ready",
        "ranker-1": "ready",
        "sorter-1": "ready",
    }
    answer = await ask(app, "/health", key=None)
    assert (answer.status, answer.body) == (503, b"")


async def test_reasons_are_told_to_operators_only(app, world, checks, monkeypatch):
    checks["triggers"] = "missing: billing_transfer_guard"
    states = {"a": "model refused: /srv/models/secret has no weights", "b": "[Errno 2] /srv/other", "c": "loading"}
    monkeypatch.setattr(world.runtime, "deployments", lambda: states)
    told = (await ask(app, "/readyz", key=None)).json()
    assert told["deployments"] == {"a": "model refused", "b": "not ready", "c": "loading"}
    assert told["checks"]["triggers"] == "failing"
    assert (await ask(app, "/readyz", key="guessed")).json() == told
    told = (await ask(app, "/readyz", key=operator_token())).json()
    assert told["deployments"] == states
    assert told["checks"]["triggers"] == "missing: billing_transfer_guard"


@pytest.mark.parametrize("headers", [{}, {"x-forwarded-for": "127.0.0.1"}, {"via": "1.1 cache"}, {"x-real-ip": "::1"}])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "203.0.113.7", "10.0.0.1", "unix"])
async def test_figures_and_deployments_are_for_this_machine_and_its_operators(app, checks, address, headers):
    is_told = not headers and address in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    told = await ask(app, "/metrics", key=None, headers=headers, address=address)
    if is_told:
        assert (told.status, told.headers["content-type"]) == (200, CONTENT_TYPE)
    else:
        assert_error(told, 401, "operators_only")
    assert ("deployments" in (await ask(app, "/readyz", key=None, headers=headers, address=address)).json()) is is_told
    told = await ask(app, "/readyz", key=operator_token(), headers=headers, address=address)
    assert "small-1" in told.json()["deployments"]
    assert (await ask(app, "/metrics", key=operator_token(), headers=headers, address=address)).status == 200


async def test_a_flood_of_scrapes_is_rendered_once_a_second_and_lets_others_go_on(monkeypatch):
    """Four connections that asked for nothing but figures made others' requests ten times slower."""
    now, rendered, went_on = [0.0], [], 0
    metrics = Metrics(lambda: now[0])
    families = metrics._families
    monkeypatch.setattr(metrics, "_families", lambda: rendered.append(1) or families())

    async def bystander():
        nonlocal went_on
        while not scrapes.done():
            went_on += 1
            await asyncio.sleep(0)

    scrapes = asyncio.gather(*(metrics.shown() for _ in range(100)))
    await asyncio.gather(scrapes, bystander())
    assert len(set(scrapes.result())) == 1
    assert went_on >= len(list(families()))
    for now[0], times in ((0.99, 1), (1.0, 2)):
        await metrics.shown()
        assert len(rendered) == times


async def test_probes_have_a_port_of_their_own_where_one_is_set(world, checks, settings):
    settings.SLUICE_METRICS_PORT = lease_port()
    from gateway.asgi import application, probes_of

    server = gateway_server(application, probes_of(), "127.0.0.1", lease_port())
    server.config.load()
    server.config.lifespan_class = lifespan_with(world.runtime)
    task = asyncio.create_task(server.serve())
    while not server.started or len(server.servers) < 2:
        assert not task.done(), task.result()
        await asyncio.sleep(0.005)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{settings.SLUICE_METRICS_PORT}") as session:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/models", 404)):
            async with session.get(path) as answer:
                assert answer.status == status
                assert "html" not in answer.content_type
    server.should_exit = True
    await task


async def test_answers_are_counted_by_route_and_status(app, world):
    await ask(app, "/v1/models/small")
    await ask(app, "/v1/made-up-by-a-client")
    await ask(app, "/v1/usage/made-up")
    await ask(app, "/anything/made-up")
    await ask(app, "//v1/models/small")
    text = world.runtime.metrics.render().decode()
    assert 'sluice_requests_total{endpoint="/v1/models/{id}",status="200"} 2.0' in text
    for route in ("/v1/*", "/v1/usage/{id}", "control"):
        assert f'sluice_requests_total{{endpoint="{route}",status="404"}} 1.0' in text
    assert "made-up" not in text


def test_gateway_that_is_starting_refuses():
    with pytest.raises(Refusal) as starting:
        runtime_of({})
    assert (starting.value.status, starting.value.code) == (503, "starting")
