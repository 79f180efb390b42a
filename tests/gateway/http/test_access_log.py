"""The access log says who asked: tenant, key or user, and address."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler

from base.http import send_json
from gateway import logs
from gateway.errors.refusal import Refusal
from gateway.http import guard
from gateway.http.access import note_caller, principal_of
from gateway.http.routes import Route
from tests.gateway.world import in_database
from tests.parties import make_party

FROM = ("192.0.2.7", 1234)


@pytest.fixture
def lines(monkeypatch):
    """What the access log is told."""
    found = []

    class Log:
        def info(self, event, **line):
            found.append({**logs._about.get(), **line})  # as the line is written

        def exception(self, event, **line):
            raise AssertionError(line)

    monkeypatch.setattr(guard, "log", Log())
    return found


async def ask(application, path, headers=()):
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *headers],
        "client": FROM,
        "server": ("localhost", 80),
        "state": {},
    }
    one = ApplicationCommunicator(guard.guarded(application), scope)
    await one.send_input({"type": "http.request", "body": b"", "more_body": False})
    while True:
        message = await one.receive_output(120)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            break
    await one.wait(120)


async def test_the_line_says_who_was_recognised(lines):
    async def known(scope, receive, send):
        note_caller({**scope}, tenant="t", key="k")
        await send_json(send, 200, {}, {})

    async def stranger(scope, receive, send):
        await send_json(send, 401, {}, {})

    await ask(known, "/v1/models")
    await ask(stranger, "/v1/models")
    assert (lines[0]["tenant"], lines[0]["key"], lines[0]["address"]) == ("t", "k", "192.0.2.7")
    assert "tenant" not in lines[1]
    assert lines[1]["address"] == "192.0.2.7"


async def test_a_key_of_the_data_plane_is_recognised_before_its_scopes_are_judged():
    class Principals:
        async def by_key(self, key, network):
            return SimpleNamespace(tenant="t", project="p", api_key="k", scopes=frozenset(), networks=())

    exchange = SimpleNamespace(caller={}, route=Route("/v1/models", "models.read"))
    runtime = SimpleNamespace(principals=Principals())
    headers = [(b"authorization", b"Bearer sk-sluice-x")]
    with pytest.raises(Refusal) as refused:
        await principal_of({"method": "GET", "headers": headers, "state": {"runtime": runtime}, "exchange": exchange})
    assert refused.value.code == "insufficient_scope"
    assert exchange.caller == {"tenant": "t", "key": "k"}


@pytest.mark.django_db(transaction=True)
async def test_the_management_api_is_recognised_too(lines):
    from billing.services import cards, plans

    def party():
        cards.ensure_default_cards()
        plans.ensure_default_plans()
        return make_party("acme")

    acme = await in_database(party)
    await ask(ASGIHandler(), "/api/v1/keys/", [(b"authorization", acme.bearer["authorization"].encode())])
    line = lines[-1]
    assert (line["tenant"], line["key"]) == (acme.tenant.id, acme.key.id)
    assert acme.secret not in str(line)
