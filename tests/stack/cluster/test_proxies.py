"""The proxy files of `deploy/`, run by the proxies themselves: what passes, what doesn't, and what is repeated."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shutil
import signal
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPSConnection
from itertools import chain
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.services.ports import lease_port
from tests.services.proxies import Scripted, caddy, nginx
from tests.stack.stack import PATIENCE
from tests.stack.units import Unit
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PROXIES = {"nginx": nginx, "caddy": caddy}
ANY_CERTIFICATE = ssl._create_unverified_context()
MOST = 8 * 1024 * 1024  # SLUICE_MAX_BODY_BYTES
FILE = 100 * 1024 * 1024  # SLUICE_MAX_FILE_BYTES
FORM = 64 * 1024  # around a file


@pytest.fixture(params=PROXIES)
def proxy(request, tmp_path):
    """Starts the proxy in front of two gateways and a process of pages."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return lambda *gateways, control="": PROXIES[request.param](list(gateways), tmp_path, control)


@contextlib.asynccontextmanager
async def session_of(address):
    """A session that ends when its sockets have: aiohttp leaves the end of TLS to later turns of the loop."""
    opened = []

    def socket_of(found):
        opened.append(socket.socket(*found[:3]))
        return opened[-1]

    async with aiohttp.ClientSession(
        address,
        connector=aiohttp.TCPConnector(ssl=False, force_close=True, socket_factory=socket_of),
        timeout=aiohttp.ClientTimeout(total=PATIENCE),
        cookie_jar=aiohttp.CookieJar(unsafe=True),  # of an IP address, too
    ) as session:
        yield session
    while any(one.fileno() != -1 for one in opened):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


def call(key, **more):
    body = {"model": "word-chat", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 4, **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {key}"}}


def run(address, use):
    async def go():
        async with session_of(address) as session:
            return await use(session)

    return asyncio.run(go())


def nobody():
    return f"127.0.0.1:{lease_port()}"


def test_an_event_leaves_before_the_next_one_is_made(proxy):
    with Scripted("stream") as upstream, proxy(upstream.address, upstream.address) as address:

        async def use(session):
            async with session.post("/v1/chat/completions", json={}) as answer:
                lines = [await answer.content.readline()]
                upstream.go_on.set()  # only now is there a second one
                return lines + [line async for line in answer.content]

        assert [line for line in run(address, use) if line.strip()] == [b"data: first\n", b"data: second\n"]


def test_a_client_that_leaves_is_told_to_the_gateway(proxy):
    with Scripted("stream") as upstream, proxy(upstream.address, upstream.address) as address:
        url = urlsplit(address)
        made = (
            HTTPSConnection(url.netloc, context=ANY_CERTIFICATE)
            if url.scheme == "https"
            else HTTPConnection(url.netloc)
        )
        made.request("POST", "/v1/chat/completions", "{}")
        answer = made.getresponse()
        assert answer.readline() == b"data: first\n"
        answer.close()
        made.close()
        assert upstream.client_left.wait(PATIENCE)


def test_what_a_client_says_of_itself_is_not_believed(proxy):
    lies = {
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Proto": "gopher",
        "X-Forwarded-Host": "evil.example.com",
        "X-Real-IP": "6.6.6.6",
    }
    with Scripted() as upstream, proxy(upstream.address, upstream.address) as address:

        async def use(session):
            async with session.get("/", headers=lies) as answer:
                return (await answer.json())["headers"]

        headers = run(address, use)
    scheme, _, host = address.partition("://")
    assert headers["host"] == headers["x-forwarded-host"] == host
    assert headers["x-forwarded-proto"] == scheme
    assert headers["x-forwarded-for"] == "127.0.0.1"


def test_a_gateway_that_does_not_listen_costs_no_request(proxy):
    with Scripted() as one, Scripted() as other, proxy(one.address, other.address) as address:

        async def ask(session, count):
            answers = []
            for number in range(count):
                async with session.post(f"/v1/{number}", json={}) as answer:
                    answers.append(answer.status)
            return answers

        assert run(address, lambda session: ask(session, 10)) == [200] * 10
        assert one.seen
        assert other.seen
        one.stop()
        try:
            while address.startswith("http:") and run(address, lambda session: ask(session, 5)) != [200] * 5:
                pass  # Caddy, which stands here without TLS, doesn't ask twice: it looks each half second
            other_before = len(other.seen)
            assert run(address, lambda session: ask(session, 20)) == [200] * 20
            assert len(other.seen) == other_before + 20
        finally:
            one.__enter__()  # so that it can be stopped once more


def test_what_was_sent_is_not_sent_again(proxy):
    """A gateway that dies over a POST may have begun it: only the client may decide to repeat it."""
    with Scripted("die") as dying, Scripted() as living, proxy(dying.address, living.address) as address:

        async def ask(session):
            answers = {}
            for number in range(12):
                async with session.post(f"/v1/{number}", json={}) as answer:
                    answers[f"/v1/{number}"] = answer.status, await answer.json()
            return answers

        answers = run(address, ask)
        assert dying.seen
        assert sorted(dying.seen + living.seen) == sorted(answers)
        for path in dying.seen:
            status, body = answers[path]
            assert (status, body["error"]["code"]) == (503, "gateway_unreachable")


def test_each_request_arrives_with_its_own_body_beside_a_gateway_that_is_away(proxy):
    """Caddy 2.6 repeats a POST from a buffer that it has given to another request meanwhile."""
    with Scripted() as living, proxy(nobody(), living.address) as address:

        async def ask(session, client):
            pairs = []
            for number in range(60):
                sent = f"{client:04}{number:04}"
                async with session.post("/v1/x", data=sent.encode() * 200) as answer:
                    pairs += [(sent, (await answer.json())["begins"])] if answer.status == 200 else []
            return pairs

        async def use(session):
            return await asyncio.gather(*(ask(session, client) for client in range(32)))

        pairs = list(chain(*run(address, use)))
        assert pairs
        assert [(sent, got) for sent, got in pairs if sent != got] == []


async def send(session, body, key=""):
    headers = {"Authorization": f"Bearer {key}"}
    async with session.post("/v1/chat/completions", data=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def answered(session, body, key):
    """Send it until it is answered: a server that refuses early closes on a client that still writes, and TCP may then
    lose the answer.
    """
    for _ in range(20):
        with contextlib.suppress(aiohttp.ClientOSError):
            return await send(session, body(), key)
    raise AssertionError("each answer was lost")


def test_the_largest_body_passes_whole(proxy):
    with Scripted() as upstream, proxy(upstream.address, upstream.address) as address:
        status, body = run(address, lambda session: send(session, io.BytesIO(b"x" * MOST)))
        assert (status, body["bytes"]) == (200, MOST)


def test_a_file_is_larger_than_the_largest_body(proxy):
    async def upload(session, size):
        async with session.post("/v1/files", data=io.BytesIO(b"x" * size)) as answer:
            return answer.status, await answer.json()

    with Scripted() as upstream, proxy(upstream.address, upstream.address) as address:
        for size in (9 * 1024 * 1024, FILE + FORM):
            status, body = run(address, lambda session, size=size: upload(session, size))
            assert (status, body["bytes"]) == (200, size)


def test_a_file_that_is_too_large_is_refused_in_the_apis_form(proxy, stack):
    headers = {"Authorization": f"Bearer {stack.tenants['max']['key']}"}
    with proxy(f"127.0.0.1:{stack.port}", f"127.0.0.1:{stack.port}") as address:

        async def upload(session):
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", io.BytesIO(b"x" * (FILE + 1024 * 1024)), filename="lines.jsonl")
            async with session.post("/v1/files", data=form, headers=headers) as answer:
                return answer.status, await answer.json()

        status, body = run(address, upload)
        assert (status, body["error"]["code"]) == (413, "file_too_large")


def test_a_larger_body_is_refused_in_the_apis_form(proxy, stack):
    async def in_parts():
        for _ in range(MOST // 65_536 + 1):
            yield b"x" * 65_536

    key = stack.tenants["max"]["key"]
    with proxy(f"127.0.0.1:{stack.port}", f"127.0.0.1:{stack.port}") as address:
        for body in (lambda: io.BytesIO(b"x" * (MOST + 1)), in_parts):
            status, answer = run(address, lambda session, body=body: answered(session, body, key))
            assert (status, answer["error"]["code"]) == (413, "request_too_large")


def test_what_is_for_operators_does_not_pass(proxy):
    with Scripted() as upstream, proxy(upstream.address, upstream.address) as address:

        async def use(session):
            return [(await session.get(path)).status for path in (*ours, "/health", "/v1/models")]

        ours = ("/metrics", "/readyz", "/healthz", "/internal/standing")
        assert run(address, use) == [404, 404, 404, 404, 200, 200]
        assert upstream.seen == ["/health", "/v1/models"]


def test_nobody_there_is_said_in_the_apis_form(proxy):
    with proxy(nobody(), nobody()) as address:

        async def use(session):
            async with session.post("/v1/chat/completions", json={}) as answer:
                return answer.status, answer.headers["retry-after"], await answer.json()

        status, after, body = run(address, use)
        assert (status, after, body["error"]["code"]) == (503, "1", "gateway_unreachable")


def test_a_real_gateway_behind_it(proxy, stack):
    key = stack.tenants["max"]["key"]
    with proxy(f"127.0.0.1:{stack.port}", f"127.0.0.1:{stack.port}") as address:

        async def use(session):
            async with session.post("/v1/chat/completions", **call(key, stream=True, max_tokens=200)) as answer:
                events = [line async for line in answer.content if line.startswith(b"data: ")]
            async with session.ws_connect("/v1/responses", headers={"Authorization": f"Bearer {key}"}) as socket:
                await socket.send_json({"type": "response.create", "model": "word-chat", "input": "go on"})
                said = [json.loads((await socket.receive()).data)["type"] for _ in range(4)]
            return events, said

        events, said = run(address, use)
        assert len(events) > 3  # a stream, in however few pieces a busy gateway sends it
        assert events[-1] == b"data: [DONE]\n"
        assert said[0] == "response.created"


def test_people_sign_in_through_it_and_see_what_only_gateways_know(proxy, cluster):
    """The form passes only if the process of pages knows the scheme and host that the browser sees."""
    stack, control = cluster.stack, f"127.0.0.1:{cluster.control_port}"
    with proxy(f"127.0.0.1:{stack.port}", f"127.0.0.1:{stack.port}", control=control) as address:
        email = f"operator-{address[-5:]}@example.com"
        stack.script("superuser", email, "behind-a-proxy-1")

        async def use(session):
            async with session.get("/static/sluice.css") as sheet:
                assert sheet.headers.get("Content-Encoding") == "gzip"
            async with session.get("/accounts/login/") as page:
                assert "Content-Encoding" not in page.headers
                [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', await page.text())[:1]
            form = {"login": email, "password": "behind-a-proxy-1", "csrfmiddlewaretoken": token}
            headers = {"Origin": address, "Referer": f"{address}/accounts/login/"}
            async with session.post("/accounts/login/", data=form, headers=headers, allow_redirects=False) as answer:
                assert (answer.status, "sluice_session" in answer.cookies) == (302, True)
            async with session.get("/admin/routing/deployment/") as page:
                seen = await page.text()
            async with session.get("/v1/models", headers={"Authorization": "Bearer wrong"}) as answer:
                return seen, (await answer.json())["error"]["code"]

        seen, code = run(address, use)
        assert re.search(r">\s*ready\s*<", seen), "a gateway told it"
        assert code == "invalid_api_key", "a gateway said it"
        assert ask(f"http://{control}/v1/models").status == 404
        assert ask(f"http://{control}/readyz").json["status"] == "ready"


def test_gateways_behind_them_are_restarted_without_a_failed_request_and_one_never_starts_again(stack, tmp_path):
    """Both proxies at once, in front of the same two gateways, which run as their unit says."""
    key = stack.tenants["max"]["key"]

    async def client(session, over):
        seen = []
        while not over.is_set():
            async with session.post("/v1/chat/completions", **call(key)) as answer:
                seen.append(answer.status if answer.status == 200 else await answer.text())
        return seen

    async def restarts(addresses):
        over = asyncio.Event()
        async with contextlib.AsyncExitStack() as opened:
            sessions = [await opened.enter_async_context(session_of(address)) for address in addresses]
            clients = [asyncio.create_task(client(session, over)) for session in sessions * 4]
            for unit in units:
                starts = unit.starts
                unit.restart()
                while unit.starts == starts or not await asyncio.to_thread(unit.is_ready):
                    await asyncio.sleep(0.05)
                    assert not any(one.done() for one in clients), [one for one in clients if one.done()]
            over.set()
            return await asyncio.gather(*clients)

    async def answers(session):
        async with session.post("/v1/chat/completions", **call(key)) as answer:
            return answer.status

    with contextlib.ExitStack() as running:
        # On a busy machine a proxy looks late, at who leaves and at who is back.
        environment = {**stack.environment, "SLUICE_NOTICE_SECONDS": "8"}
        units = [running.enter_context(Unit(environment, lease_port(), tmp_path / f"{n}.log")) for n in range(2)]
        while not all(unit.is_ready() for unit in units):
            time.sleep(0.05)
        addresses = []
        for name in filter(shutil.which, PROXIES):
            (tmp_path / name).mkdir()
            behind = [unit.address for unit in units]
            addresses.append(running.enter_context(PROXIES[name](behind, tmp_path / name)))
        if not addresses:
            pytest.skip("no proxy is installed")
        seen = asyncio.run(restarts(addresses))
        assert all(seen), "all of them asked all along"
        assert set(chain(*seen)) == {200}
        units[0].environment["DATABASE_URL"] = "postgresql://127.0.0.1:1/none"
        units[0].send(signal.SIGKILL)
        for address in addresses:
            while run(address, answers) != 200:  # Caddy looks each half second
                pass
            assert [run(address, answers) for _ in range(10)] == [200] * 10
