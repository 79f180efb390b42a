"""Pages of other origins: kept out by the browser unless an operator names them, and never let in with cookies."""

from __future__ import annotations

import pytest

from gateway.http.cors import with_cors
from tests.gateway.apis.client import ask, assert_error

PAGE = "https://app.example"
ASKED = "authorization,content-type,x-api-key,anthropic-version,anthropic-beta,idempotency-key,last-event-id"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": ASKED}


def grants(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_without_origins_nothing_stands_between(app):
    assert with_cors(app, []) is app


@pytest.mark.parametrize("origins", [[PAGE], ["https://other.example", PAGE], ["*"]])
async def test_named_origins_may_ask_and_read(app, origins):
    app = with_cors(app, origins)
    answer = await ask(app, "/v1/chat/completions", method="OPTIONS", headers=PREFLIGHT, key=None)
    assert answer.status == 204
    assert grants(answer)["access-control-allow-origin"] == PAGE
    assert grants(answer)["access-control-allow-headers"] == ASKED
    assert "POST" in grants(answer)["access-control-allow-methods"]
    answer = await ask(app, "/v1/models", headers={"origin": PAGE})
    assert (answer.status, answer.headers["vary"]) == (200, "Origin")
    assert grants(answer) == {"access-control-allow-origin": PAGE, "access-control-expose-headers": "*"}
    assert "access-control-allow-credentials" not in answer.headers


async def test_errors_can_be_read_too(app):
    answer = await ask(with_cors(app, [PAGE]), "/v1/models", headers={"origin": PAGE}, key=None)
    assert_error(answer, 401, "missing_api_key")
    assert grants(answer)["access-control-allow-origin"] == PAGE


async def test_others_get_no_grant(app):
    app = with_cors(app, [PAGE])
    foreign = {**PREFLIGHT, "origin": "https://app.example.evil"}
    answer = await ask(app, "/v1/chat/completions", method="OPTIONS", headers=foreign)
    assert answer.status == 405
    assert grants(answer) == {}
    assert grants(await ask(app, "/v1/models", headers={"origin": "null"})) == {}


async def test_the_control_plane_has_none(app):
    app = with_cors(app, ["*"])
    assert grants(await ask(app, "/api/v1/keys/", method="OPTIONS", headers=PREFLIGHT, key=None)) == {}
    assert grants(await ask(app, "/healthz", headers={"origin": PAGE}, key=None)) == {}
