"""Who may open a websocket: a key from anywhere, a session only from our own pages."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from gateway.apis.websocket import endpoint as responses
from gateway.concurrency import Cap
from gateway.errors.refusal import Refusal
from gateway.http import callers
from inference.types import FinishReason
from tenancy.models import User
from tenancy.services.scopes import READ_ONLY, expanded
from tests.gateway.apis.websocket.socket import Socket

USER, PROJECT = UUID(int=70), UUID(int=71)
OURS = {"origin": "http://127.0.0.1:8000", "cookie": f"{settings.SESSION_COOKIE_NAME}=good; theme=dark"}
CREATE = {"type": "response.create", "model": "small", "input": "Hi"}


@pytest.fixture
def signed_in(monkeypatch, world):
    """The session `good` is USER's, who is a member in PROJECT."""
    sessions = {"good": USER}
    monkeypatch.setattr(callers, "_user_of", sessions.get)
    world.runtime.principals.members[USER, PROJECT] = world.principal(user=USER, api_key=None, project=PROJECT)
    return sessions


async def test_websocket_without_a_key_is_refused(app):
    assert (await Socket(app, key=None).refused(401, "missing_api_key"))["request_id"]


@pytest.mark.parametrize("code", ["invalid_api_key", "api_key_revoked", "api_key_expired"])
async def test_websocket_with_a_bad_key_is_refused(app, world, code):
    world.runtime.principals.keys["sk-bad"] = Refusal(401, code, "No.")
    await Socket(app, key="sk-bad").refused(401, code)


@pytest.mark.parametrize("scopes", [["management"], [READ_ONLY]])
async def test_key_may_not_lack_the_scope(app, world, scopes):
    """A socket makes responses: it isn't enough to read them."""
    world.set_principal(scopes=expanded(scopes))
    await Socket(app).refused(403, "insufficient_scope")


async def test_key_needs_no_origin_and_may_have_any(app):
    for headers in ({}, {"origin": "https://elsewhere.example"}):
        socket = await Socket(app, headers=headers).opened()
        assert socket.headers["x-request-id"]
        await socket.leave()


async def test_websocket_elsewhere_is_refused(app):
    await Socket(app, "/ws/chat").refused(404, "unknown_endpoint")


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "https://elsewhere.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8000.elsewhere.example",
        "http://127.0.0.1:8000@elsewhere.example",
        "http://127.0.0.1:port",
        "http://[",
        "ftp://127.0.0.1:8000",
    ],
)
async def test_session_from_a_foreign_page_is_refused(app, signed_in, origin):
    headers = {**OURS, "origin": origin}
    if origin is None:
        del headers["origin"]
    await Socket(app, key=None, headers=headers).refused(403, "origin_not_allowed")


async def test_page_in_the_clear_is_foreign_where_sessions_are_not(app, signed_in, settings):
    """Whoever sits on the way can write the page of http://our.host, and browsers open wss:// from it."""
    headers = {**OURS, "host": "sluice.example", "origin": "http://sluice.example"}
    await (await Socket(app, key=None, headers=headers).opened()).leave()
    settings.SESSION_COOKIE_SECURE = True
    await Socket(app, key=None, headers=headers).refused(403, "origin_not_allowed")
    ours = {**headers, "origin": "https://sluice.example"}
    await (await Socket(app, key=None, headers=ours).opened()).leave()


async def test_somebody_elses_broken_cookie_hides_not_ours(app, signed_in):
    socket = await Socket(app, key=None, headers={**OURS, "cookie": f"a{{b}}=1; =; {OURS['cookie']}"}).opened()
    await socket.leave()


async def test_too_many_parameters_are_refused(app):
    await Socket(app, "/v1/responses?" + "a=1&" * 40).refused(400, "invalid_value")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://sluice.example", "sluice.example"),
        ("https://Sluice.example", "sluice.example:443"),
        ("http://a", "a:80"),
    ],
)
async def test_default_ports_are_the_same_origin(app, signed_in, origin, host):
    socket = await Socket(app, key=None, headers={**OURS, "origin": origin, "host": host}).opened()
    await socket.leave()


async def test_page_behind_a_proxy_is_ours_where_the_proxy_is_trusted(app, signed_in, settings):
    """The proxy connects to us as 127.0.0.1:8000, and says in a header what the browser asked for."""
    headers = {**OURS, "origin": "https://sluice.example", "x-forwarded-host": "sluice.example"}
    await Socket(app, key=None, headers=headers).refused(403, "origin_not_allowed")
    settings.USE_X_FORWARDED_HOST = True
    await (await Socket(app, key=None, headers=headers).opened()).leave()
    foreign = {**headers, "origin": "https://elsewhere.example"}
    await Socket(app, key=None, headers=foreign).refused(403, "origin_not_allowed")


async def test_page_of_a_trusted_origin_is_ours(app, signed_in, settings):
    settings.CSRF_TRUSTED_ORIGINS = ["https://sluice.example"]
    headers = {**OURS, "origin": "https://sluice.example"}
    await (await Socket(app, key=None, headers=headers).opened()).leave()
    await Socket(app, key=None, headers={**OURS, "origin": "http://sluice.example"}).refused(403, "origin_not_allowed")


async def test_sockets_of_one_owner_are_counted(app, signed_in, monkeypatch):
    counted = Cap(2, responses.too_many_sockets)
    monkeypatch.setattr(responses.ResponsesConsumer, "__init__", counted_by(counted))
    sockets = [await Socket(app).opened() for _ in range(2)]
    await Socket(app).refused(429, "too_many_connections")
    sockets.append(await Socket(app, key=None, headers=OURS).opened())  # a user counts apart
    await Socket(app, key="sk-bad").refused(401, "invalid_api_key")
    assert len(counted) == 3
    await sockets.pop(0).leave()
    sockets.append(await Socket(app).opened())
    for socket in sockets:
        await socket.leave()
    assert len(counted) == 0


def counted_by(cap):
    make = responses.ResponsesConsumer.__init__

    def init(self, **_):
        make(self, cap)

    return init


async def test_session_that_ended_is_refused(app, signed_in):
    signed_in.clear()
    await Socket(app, key=None, headers=OURS).refused(401, "not_signed_in")


async def create(app, *, path="/v1/responses", **changes):
    socket = await Socket(app, path, key=None, headers=OURS).opened()
    socket.send({**CREATE, **changes})
    return socket, await socket.until("response.completed", "error")


async def test_picked_project_is_charged(app, world, signed_in):
    socket, events = await create(app, metadata={"sluice_project": str(PROJECT)})
    assert events[-1]["response"]["sluice"]["route"]["model"] == "small"
    assert (world.generations[0].principal.project, world.generations[0].principal.user) == (PROJECT, USER)
    assert any(event["type"] == "sluice.usage" for event in events)
    await socket.leave()


async def test_project_may_stand_in_the_address(app, world, signed_in):
    socket, events = await create(app, path=f"/v1/responses?project={PROJECT}")
    assert events[-1]["type"] == "response.completed"
    assert world.generations[0].principal.project == PROJECT
    await socket.leave()


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"sluice_project": "mine"}, "invalid_value"),
        ({"sluice_project": str(UUID(int=99))}, "not_a_member"),
    ],
)
async def test_wrong_project_is_refused(app, world, signed_in, metadata, code):
    socket, events = await create(app, metadata=metadata)
    assert events[-1]["error"]["code"] == code
    assert world.generations == []
    await socket.leave()


async def test_membership_and_session_are_checked_at_each_message(app, world, signed_in):
    metadata = {"sluice_project": str(PROJECT)}
    socket, events = await create(app, metadata=metadata)
    assert events[-1]["type"] == "response.completed"
    members, world.runtime.principals.members = world.runtime.principals.members, {}
    socket.send({**CREATE, "metadata": metadata})
    assert (await socket.until("response.completed", "error"))[-1]["error"]["code"] == "not_a_member"
    world.runtime.principals.members = members
    signed_in.clear()
    socket.send({**CREATE, "metadata": metadata})
    assert (await socket.until("response.completed", "error"))[-1]["error"]["code"] == "not_signed_in"
    assert len(world.generations) == 1
    await socket.leave()


async def test_client_that_leaves_while_its_right_is_checked_starts_nothing_that_stays(app, world, signed_in):
    world.starting = asyncio.Event()
    world.set_options(hang_at=1)
    socket = await Socket(app, key=None, headers=OURS).opened()
    socket.send({**CREATE, "metadata": {"sluice_project": str(PROJECT)}})
    await socket.leave()
    world.starting.set()
    for generation in world.generations:
        assert await world.reason_of(generation) is FinishReason.CANCELLED
    await world.settled()


def session_of(user):
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return session.session_key


def test_session_is_its_users_while_they_may_sign_in(db):
    user = User.objects.create_user("ada@example.org", "a long password")
    session = session_of(user)
    assert callers._user_of(session) == user.pk
    assert callers._user_of("made-up") is None
    user.set_password("another long password")
    user.save()
    assert callers._user_of(session) is None
    session = session_of(user)
    user.is_active = False
    user.save()
    assert callers._user_of(session) is None
