"""The whole application: guard, lifespan, and what is Django's."""

from __future__ import annotations

import asyncio

import openai
import pytest

from base.errors import DatabaseBusyError
from gateway import lifespan as lifespan_module
from gateway.errors.refusal import Refusal
from gateway.http.guard import guarded
from inference.errors import OverloadedError
from routing.errors import RoutingError
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.apis.server import serving
from tests.gateway.apis.websocket.socket import Socket


async def test_everything_else_is_djangos(app):
    answer = await ask(app, "/no-such-page", key=None, headers={"accept": "text/html"})
    assert answer.status == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["x-request-id"]


async def test_request_ids_are_ours(app):
    answers = [await ask(app, "/healthz", headers={"x-request-id": "theirs"}) for _ in range(2)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    assert "theirs" not in ids


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(Refusal(418, "teapot", "Short."), 418, "teapot"), (RuntimeError("boom"), 500, "internal_error")],
)
async def test_guard_answers_for_http_and_websocket_alike(error, status, code):
    async def broken(scope, receive, send):
        raise error

    assert_error(await ask(guarded(broken), "/x"), status, code)
    await Socket(guarded(broken)).refused(status, code)


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(400, "odd", "Half a character: \ud800.", param="\udfff", headers={"x-odd": "\ud800"}),
        Refusal(400, "odd", "Half a character: ?.", param="?", headers={"x-odd": "€"}),
        Refusal(400, "odd", {"what": {"\ud800"}}),
    ],
    ids=["surrogates", "header", "no-text"],
)
@pytest.mark.parametrize("api", [{}, {"anthropic-version": "2023-06-01"}], ids=["openai", "anthropic"])
async def test_guard_tells_a_refusal_whose_own_text_cannot_be_encoded(refusal, api):
    async def broken(scope, receive, send):
        raise refusal

    answer = await ask(guarded(broken), "/x", headers=api)
    assert answer.status == 400
    body = answer.json()
    assert "odd" in (body["error"].get("code"), body["error"].get("details", {}).get("error_code"))
    told = body["request_id"] if api else body["error"]["request_id"]
    assert told == answer.headers["x-request-id"]
    if refusal.param is not None:
        assert body["error"]["message"] == "Half a character: ?."
        assert answer.headers["x-odd"] == "?"
    if not api:
        await Socket(guarded(broken)).refused(400, "odd")


async def test_guard_answers_an_error_whose_own_text_cannot_be_encoded():
    async def broken(scope, receive, send):
        raise RuntimeError("\ud800")

    assert_error(await ask(guarded(broken), "/x"), 500, "internal_error")


async def test_guard_lets_a_begun_answer_be_cut():
    async def broken(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        await ask(guarded(broken), "/x")


class Opened:
    """Stands for the runtime."""

    def __init__(self, fault=None) -> None:
        self.fault = fault
        self.closed = False

    async def open(self):
        if self.fault:
            raise self.fault
        return self

    def notes(self, **_):
        return {}

    async def close(self):
        self.closed = True

    @property
    def metrics(self):
        return self

    def answered(self, endpoint, status):
        """Count nothing."""

    async def readiness(self):
        return {"database": ""}

    def deployments(self):
        return {}


async def test_lifespan_opens_the_runtime_for_every_request(monkeypatch):
    from gateway.asgi import application

    runtime = Opened()
    monkeypatch.setattr(lifespan_module, "open_runtime", runtime.open)
    async with serving(application, lifespan="on") as place:
        async with openai.AsyncOpenAI(api_key="x", base_url=f"http://{place}", max_retries=0) as client:
            assert (await client.get("/readyz", cast_to=dict))["status"] == "ready"
        assert not runtime.closed
    assert runtime.closed


async def test_start_that_fails_is_told_to_the_server(monkeypatch):
    from gateway.asgi import application

    monkeypatch.setattr(lifespan_module, "open_runtime", Opened(RuntimeError("the home is in use by process 7")).open)
    incoming, outgoing = asyncio.Queue(), asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    await application({"type": "lifespan", "state": {}}, incoming.get, outgoing.put)
    told = outgoing.get_nowait()
    assert told == {"type": "lifespan.startup.failed", "message": "the home is in use by process 7"}


async def test_error_has_the_shape_of_its_routes_api(app):
    own = await ask(app, "/v1/messages", method="PUT")
    told = own.json()
    assert (own.status, own.headers["allow"], told["type"]) == (405, "POST", "error")
    assert told["error"]["details"]["error_code"] == "method_not_allowed"
    error = assert_error(await ask(app, "/v1/files", method="PUT"), 405, "method_not_allowed")
    assert error["message"] == "PUT is not allowed here: use POST, GET."


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RoutingError("model_not_found", "No such model.", model="m"), 404),
        (RoutingError("no_ready_deployment", "None is ready.", model="m"), 503),
        (OverloadedError("Full."), 503),
        (DatabaseBusyError("Too much waits."), 503),
    ],
)
async def test_what_other_parts_raise_has_a_status_only_here(error, status):
    async def broken(scope, receive, send):
        raise error

    answer = await ask(guarded(broken), "/x")
    assert_error(answer, status, getattr(error, "code", "database_unavailable"))
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
