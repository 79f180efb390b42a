"""``…/quote`` over HTTP: beside each endpoint that generates, by a key or by a person at our own pages."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.conf import settings

from gateway.apis.shared.quote import MOST, PROBABLY
from gateway.http import callers
from tests.gateway.apis.client import ask
from tests.gateway.apis.world import PROMPT_COST

USER, PROJECT = UUID(int=70), UUID(int=71)
HI = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"model": "small", "messages": HI, "max_tokens": 9},
    "/v1/completions": {"model": "small", "prompt": "Hi", "max_tokens": 9},
    "/v1/responses": {"model": "small", "input": "Hi", "max_output_tokens": 9},
    "/v1/messages": {"model": "small", "messages": HI, "max_tokens": 9},
    "/v1/embeddings": {"model": "embedder", "input": "Hi"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_each_endpoint_that_generates_quotes_its_own_body(app, world, path):
    answer = await ask(app, f"{path}/quote", BODIES[path])
    told = answer.json()
    prompt = 1 if path in {"/v1/embeddings", "/v1/completions"} else 5  # without a chat template
    fixed, output = 7 + prompt, 0 if path == "/v1/embeddings" else 9
    assert answer.status == 200, told
    assert (told["object"], told["model"], told["input_tokens"]) == ("quote", BODIES[path]["model"], prompt)
    assert told["at_most_micro"] == fixed + 2 * output
    assert told["probably_micro"] == fixed + 2 * min(output, 2)
    assert told["nine_in_ten_micro"] == fixed + 2 * min(output, 4)
    assert told["output_tokens"] == {"at_most": output, "p50": 2, "p90": 4, "basis": "own", "requests": 50}
    assert (told["near_tier"], told["is_exact"]) == (None, True)
    assert told["rate_card_version"] == str(UUID(int=8))
    assert (answer.headers[MOST], answer.headers[PROBABLY]) == (told["at_most"], told["probably"])
    assert answer.headers["x-sluice-model"] == told["model"]
    assert world.stand.writer.operations == []
    assert not world.generations


async def test_a_quote_refuses_what_the_endpoint_would(app, world):
    wrong = await ask(app, "/v1/chat/completions/quote", {"model": "none", "messages": HI})
    assert (wrong.status, wrong.json()["error"]["code"]) == (404, "model_not_found")
    wrong = await ask(app, "/v1/messages/quote", {"model": "small", "messages": HI})
    assert (wrong.status, wrong.json()["type"]) == (400, "error"), "max_tokens is required there"
    several = await ask(app, "/v1/completions/quote", {"model": "small", "prompt": ["a", "b"]})
    assert (several.status, several.json()["error"]["param"]) == (400, "prompt")
    world.set_principal(scopes=frozenset({"embeddings"}))
    lacks = await ask(app, "/v1/chat/completions/quote", BODIES["/v1/chat/completions"])
    assert (lacks.status, lacks.json()["error"]["code"]) == (403, "insufficient_scope")


async def test_a_person_is_quoted_at_our_own_pages_alone(app, world, monkeypatch):
    monkeypatch.setattr(callers, "_user_of", {"good": USER}.get)
    world.runtime.principals.members[USER, PROJECT] = world.principal(user=USER, api_key=None, project=PROJECT)

    class Threads:
        async def run(self, work, owner=None):
            return work()

    monkeypatch.setattr(world.runtime, "threads", Threads())
    cookie = {"cookie": f"{settings.SESSION_COOKIE_NAME}=good", "host": "127.0.0.1:8000"}
    ours = {**cookie, "origin": "http://127.0.0.1:8000"}
    address, body = f"/v1/responses/quote?project={PROJECT}", BODIES["/v1/responses"]
    answer = await ask(app, address, body, key=None, headers=ours)
    assert (answer.status, answer.json()["at_most_micro"]) == (200, PROMPT_COST + 18)
    for headers in (cookie, {**cookie, "origin": "https://elsewhere.example"}):
        refused = await ask(app, address, body, key=None, headers=headers)
        assert (refused.status, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
    nobody = await ask(app, address, body, key=None)
    assert (nobody.status, nobody.json()["error"]["code"]) == (401, "missing_api_key")
    elsewhere = await ask(app, "/v1/chat/completions/quote", BODIES["/v1/chat/completions"], key=None, headers=ours)
    assert elsewhere.status == 401, "a session is for the chat page's quotes"
