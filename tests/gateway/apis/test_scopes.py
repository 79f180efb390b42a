"""Every endpoint of the data plane asks for a scope, by the table of routes itself."""

from __future__ import annotations

import re

import pytest

from gateway.asgi import http_routes_of, websocket_routes_of
from gateway.http.endpoint import endpoint
from tenancy.services.scopes import ALL, INFERENCE, MANAGEMENT, READ_ONLY, expanded
from tests.gateway.apis.client import ask, assert_error

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PATHS = sorted({pattern for route in http_routes_of() if (pattern := str(route.pattern)).startswith("v1/")})


@pytest.mark.parametrize("pattern", PATHS)
async def test_no_endpoint_answers_a_key_without_its_scope(app, world, pattern):
    """The table is walked: a path that was forgotten would answer, or would say that something else is wrong."""
    asked = set()
    address = "/" + re.sub(r"<[^>]+>", "x", pattern)
    for method in METHODS:
        world.set_principal(scopes=frozenset({MANAGEMENT}))
        answer = await ask(app, address, b"{}", method=method)
        if answer.status == 405:
            continue
        assert answer.status == 403, (method, answer.body)
        assert b"insufficient_scope" in answer.body or b"permission_error" in answer.body
        [scope] = re.findall(rb"the scope '([a-z._]+)'", answer.body)
        asked.add(scope.decode())
        world.set_principal(scopes=frozenset(INFERENCE.keys() - {scope.decode()}))
        assert (await ask(app, address, b"{}", method=method)).status == 403
        world.set_principal(scopes=frozenset({scope.decode()}))
        assert b"the scope '" not in (await ask(app, address, b"{}", method=method)).body
    assert asked
    assert asked <= INFERENCE.keys()


async def test_reading_and_writing_are_apart(app, world):
    world.set_principal(scopes=expanded([READ_ONLY]))
    assert (await ask(app, "/v1/models")).status == 200
    error = assert_error(await ask(app, "/v1/responses", {"model": "small", "input": "Hi"}), 403, "insufficient_scope")
    assert error["message"] == "This key lacks the scope 'responses.write'."


def test_a_path_of_the_api_cannot_be_without_a_scope():
    with pytest.raises(ValueError, match="which scope"):
        endpoint("GET", "/v1/forgotten", scope="", summary="Forgotten")


def test_websockets_ask_for_a_scope_too():
    assert [str(route.pattern) for route in websocket_routes_of()] == ["v1/responses", ""]


def test_scopes_stand_for_others():
    assert INFERENCE.keys() <= expanded([ALL])
    assert MANAGEMENT not in expanded([ALL])
    assert expanded([READ_ONLY]) == {
        READ_ONLY,
        "responses.read",
        "files.read",
        "batches.read",
        "adapters.read",
        "models.read",
        "usage.read",
    }
    assert expanded(["chat"]) == {"chat"}
