"""What a client can make the server hold: each bound, tried as an attacker would, over real sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from base.http import EventStream, send_json, watching
from gateway.errors.refusal import Refusal
from gateway.http.bounds import bounded, client_network
from gateway.http.guard import guarded
from gateway.http.listener import http, server
from gateway.http.listener.bounds import Bounds, Listener
from gateway.runtime.metrics import Metrics
from tests.gateway.apis.server import serving
from tests.waiting import until

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_SENT = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
BOUNDS = Bounds(
    head_bytes=4096,
    head_seconds=60.0,
    body_bytes=100_000,
    frame_bytes=1000,
    idle_seconds=60,
    write_seconds=60.0,
    connections=100,
    connections_per_address=100,
)


class Place:
    """A small application behind a listener, and what was counted."""

    def __init__(self, address: str, listener: Listener, metrics: Metrics) -> None:
        self.host, _, port = address.partition(":")
        self.port = int(port)
        self.listener = listener
        self.metrics = metrics
        self._wires: list[Wire] = []

    async def connected(self) -> Wire:
        self._wires.append(Wire(*await asyncio.open_connection(self.host, self.port)))
        return self._wires[-1]

    async def left(self) -> None:
        """Close every connection, and return when the server knows."""
        for wire in self._wires:
            wire.writer.transport.abort()
            with suppress(ConnectionError):
                await wire.writer.wait_closed()
        await self.empty()

    async def empty(self) -> None:
        """Return when the server has no connection any more."""
        await until(lambda: not self.listener.connections)

    def counted(self, endpoint: str, status: int) -> float:
        labels = {"endpoint": endpoint, "status": str(status)}
        return self.metrics.registry.get_sample_value("sluice_requests_total", labels) or 0.0


class Wire:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def refused(self, status: int, code: str) -> None:
        """The next answer is that error, in the API's shape, and the connection is closed after it."""
        got, headers, body = await self.answer()
        error = json.loads(body)["error"]
        assert (got, error["code"]) == (status, code)
        assert headers["connection"] == "close"
        assert error["request_id"] == headers["x-request-id"]
        await self.closed()

    async def closed(self) -> bytes:
        """What comes before the end of the connection."""
        rest = b""
        with suppress(ConnectionError):
            while data := await self.reader.read(65536):
                rest += data
        self.writer.close()
        return rest


async def hello(scope, receive, send):
    """Read the body, or not, and answer with its size."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message.get("text") or "?"})
        return
    size, more = 0, scope["path"] != "/unread"
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send_json(send, 200, {"size": size})


@asynccontextmanager
async def a_place(application=hello, options=None, **changes):
    runtime = SimpleNamespace(metrics=Metrics())
    listener = Listener(replace(BOUNDS, **changes))

    async with serving(guarded(bounded(application)), listener=listener, runtime=runtime, **(options or {})) as address:
        place = Place(address, listener, runtime.metrics)
        try:
            yield place
        finally:
            await place.left()


# -- clients that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["watched", "before"])
async def test_client_that_leaves_cancels_what_answers_it(when):
    began, gone = asyncio.Event(), asyncio.Event()

    async def endless(scope, receive, send):
        began.set()
        if when == "before":
            await gone.wait()
        async with watching(scope, receive):
            await asyncio.Event().wait()

    async with a_place(endless) as place:
        wire = await place.connected()
        await wire.send(GET)
        await began.wait()
        await place.left()
        gone.set()
        await until(lambda: place.counted("unknown", 499))


async def test_client_that_leaves_after_its_answer_stops_nothing():
    works = []

    async def answering(scope, receive, send):
        async with watching(scope, receive) as client:
            client.stops(lambda: works.append(scope["path"]))
            client.stop()
            await send_json(send, 200, {})

    async with a_place(answering) as place:
        wire = await place.connected()
        for _ in range(2):
            await wire.send(GET)
            assert (await wire.answer())[0] == 200
        await place.left()
        assert (works, place.counted("unknown", 200)) == ([], 2)


# -- heads ------------------------------------------------------------------------------------------------------------


async def test_connection_serves_many_requests():
    async with a_place() as place:
        wire = await place.connected()
        for _ in range(3):
            await wire.send(GET)
            assert (await wire.answer())[0] == 200
        await wire.send(b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab")
        await wire.send(b"c" + GET[:10])
        assert (await wire.answer())[2] == b'{"size":3}'
        await wire.send(GET[10:])
        assert (await wire.answer())[0] == 200


@pytest.mark.parametrize(("path", "body"), [("/", b'{"size":0}'), ("/stream", b"data: 1\n\ndata: 2\n\ndata: 3\n\n")])
@pytest.mark.parametrize("head", [b"", b"connection: keep-alive\r\n"])
async def test_client_of_http_1_0_gets_no_chunks(path, body, head):
    async def answering(scope, receive, send):
        if scope["path"] == "/":
            await hello(scope, receive, send)
            return
        async with EventStream(send, {}) as stream:
            await stream.write(b"data: 1\n\n")
            await stream.write(b"data: 2\n\n")
            await stream.finish(b"data: 3\n\n")

    async with a_place(answering) as place:
        wire = await place.connected()
        await wire.send(b"GET %b HTTP/1.0\r\nhost: x\r\n%b\r\n" % (path.encode(), head))
        told, _, got = (await wire.closed()).partition(b"\r\n\r\n")
        assert got == body
        assert b"connection: close" in told
        assert b"transfer-encoding" not in told


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nx: " + b"x" * 8192, b"GET /" + b"x" * 8192])
@pytest.mark.parametrize("piece", [8192, 700])
async def test_endless_head_is_refused_at_its_bound(head, piece):
    async with a_place() as place:
        wire = await place.connected()
        for start in range(0, len(head), piece):
            await wire.send(head[start : start + piece])
            await asyncio.sleep(0)
        await wire.refused(431, "request_header_fields_too_large")
        assert place.counted("connection", 431) == 1


async def test_endless_head_costs_no_more_than_its_bound():
    """Whatever follows the bound isn't parsed: the parser joins the pieces of a header anew with each of them."""
    fed = 0

    class Counting(http.BoundedHTTP):
        def _may_be_head(self, data):
            nonlocal fed
            may = super()._may_be_head(data)
            fed += len(data) * may
            return may

    options = {"http": lambda **given: Counting(listener=Listener(BOUNDS), **given)}
    async with a_place(options=options) as place:
        wire = await place.connected()
        await wire.send(b"GET / HTTP/1.1\r\nx: ")
        for _ in range(1000):
            await wire.send(b"x" * 1000)
        await wire.refused(431, "request_header_fields_too_large")
    assert fed <= BOUNDS.head_bytes


async def test_head_at_its_bound_passes_and_one_byte_more_does_not():
    async with a_place() as place:
        for size, status in ((4096, 200), (4097, 431)):
            wire = await place.connected()
            head = b"GET / HTTP/1.1\r\nhost: x\r\nx: "
            await wire.send(head + b"x" * (size - len(head) - 4) + b"\r\n\r\n")
            assert (await wire.answer())[0] == status


async def test_small_head_with_a_body_beyond_the_heads_bound_passes():
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 50000\r\n\r\n" + b"x" * 50_000)
        assert (await wire.answer())[2] == b'{"size":50000}'


async def test_head_that_is_never_complete_is_refused():
    async with a_place(head_seconds=0.5) as place:
        fresh, used = await place.connected(), await place.connected()
        await used.send(GET)
        await used.answer()
        for wire in (fresh, used):
            await wire.send(b"GET / HTTP/1.1\r\nx: y")
            await wire.refused(408, "request_timeout")
        assert place.counted("connection", 408) == 2


async def test_head_that_trickles_is_refused_all_the_same():
    async with a_place(head_seconds=0.5) as place:
        wire = await place.connected()
        await wire.send(b"GET / HTTP/1.1\r\nx: ")
        trickle = asyncio.create_task(trickled(wire))
        await wire.refused(408, "request_timeout")
        trickle.cancel()


async def trickled(wire):
    while True:
        await wire.send(b"x")
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("silence", [b"", b"\r\n"])
async def test_silent_connections_are_closed(silence):
    async with a_place(head_seconds=0.5, idle_seconds=0.05) as place:
        wires = [await place.connected() for _ in range(5)]
        for wire in wires:
            await wire.send(silence)
        assert [await wire.closed() for wire in wires] == [b""] * 5
        kept = await place.connected()
        await kept.send(GET)
        await kept.answer()
        await kept.send(silence)
        assert await kept.closed() == b""


async def test_what_is_not_http_is_refused():
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        await wire.refused(400, "invalid_http")


async def test_pipelined_requests_are_answered_in_order_up_to_a_bound():
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(GET * 1000)
        rest = await wire.closed()
        assert rest.count(b"HTTP/1.1 200") == 1 + http.MOST_PIPELINED
        assert rest.count(b"connection: close") == 1


# -- connections ------------------------------------------------------------------------------------------------------


async def test_connections_of_one_address_are_bounded():
    async with a_place(connections_per_address=3) as place:
        wires = [await place.connected() for _ in range(3)]
        await (await place.connected()).refused(429, "too_many_connections")
        wires.pop().writer.close()
        await until(lambda: place.listener.connections <= 2)
        wires.append(await place.connected())
        await wires[-1].send(GET)
        assert (await wires[-1].answer())[0] == 200
        assert place.counted("connection", 429) == 1


async def test_connections_in_all_are_bounded():
    async with a_place(connections=2) as place:
        for _ in range(2):
            await (await place.connected()).send(HALF_SENT)
        await until(lambda: not place.listener._without_request)
        await (await place.connected()).refused(503, "server_full")


async def test_of_all_connections_the_oldest_without_a_request_gives_way():
    """Seventeen addresses that sent nothing kept everybody else out."""
    async with a_place(connections=4) as place:
        works, answered, *silent = [await place.connected() for _ in range(4)]
        await works.send(HALF_SENT)
        await silent[0].send(b"GET / HT")  # half a head is no request
        await until(lambda: len(place.listener._without_request) == 3)
        await answered.send(GET)
        assert (await answered.answer())[0] == 200
        for gone in (*silent, answered):
            bystander = await place.connected()
            await bystander.send(GET)
            assert (await bystander.answer())[0] == 200
            assert await gone.closed() == b""
            assert place.listener.connections == 4
        await works.send(b"x" * 5)
        assert (await works.answer())[0] == 200


def test_one_site_of_ipv6_has_the_places_of_a_few_clients():
    listener = Listener(replace(BOUNDS, connections_per_address=2))
    clients = [f"2001:db8:1:{number:x}00::1" for number in range(1, 6)]
    places = [listener.enter(address) for address in clients[:4] for _ in range(2)]
    for address in (clients[0], clients[4]):
        with pytest.raises(Refusal, match="Your address"):
            listener.enter(address)
    assert listener.connections == len(places)
    places.append(listener.enter("2001:db8:2::1"))
    for place in places:
        place.close()
    assert listener.connections == 0


def test_trusted_proxies_connections_are_not_one_clients(settings):
    settings.SLUICE_TRUST_PROXY = True
    listener = Listener(replace(BOUNDS, connections_per_address=1, connections=3), server.trusted_proxies())
    places = [listener.enter("127.0.0.1") for _ in range(2)]
    places.append(listener.enter("203.0.113.7"))
    assert listener.connections == 3
    for place in places:
        place.close()
    assert listener.connections == 0
    settings.SLUICE_TRUST_PROXY = False
    assert "127.0.0.1" not in server.trusted_proxies()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/56"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::/56"),
        ("somewhere", "somewhere"),
    ],
)
def test_a_client_of_ipv6_is_its_network(address, network):
    assert client_network(address) == network


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_announced_body_beyond_the_bound_is_refused_unread(settings):
    settings.SLUICE_MAX_BODY_BYTES = 1000
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST / HTTP/1.1\r\ncontent-length: 1000000000\r\n\r\n")
        await wire.refused(413, "request_too_large")


@pytest.mark.parametrize("path", [b"/", b"/unread"])
async def test_upload_without_end_is_cut(settings, monkeypatch, path):
    """Whether or not anybody reads it: only so much of it is taken in."""
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.5)
    settings.SLUICE_MAX_BODY_BYTES = 10_000
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST " + path + b" HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        answer = asyncio.create_task(wire.answer())
        sent = 0
        while sent < 50_000_000 and not answer.done():
            await wire.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            sent += 0x10000
            await asyncio.sleep(0)
        assert (await answer)[0] == (413 if path == b"/" else 200)
        flood = asyncio.create_task(wire.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" * 1000))
        await wire.closed()
        await flood


@pytest.mark.parametrize("padding", [b"1;" + b"x" * 200, b"0\r\n" + b"x: y\r\n" * 40])
async def test_padding_around_a_body_is_bounded(padding):
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        await wire.send(padding)
        for _ in range(60):
            await wire.send(b"x" * 200 if padding[:1] == b"1" else b"x: y\r\n" * 40)
            await asyncio.sleep(0.0005)
        assert (await wire.answer())[0] == 431
        await wire.closed()


async def test_chunks_that_are_mostly_padding_are_bounded(monkeypatch):
    """Each has a byte of the body, so that the padding between two of them is short."""
    monkeypatch.setattr(http, "WIRE_OVERHEAD", 20_000)
    async with a_place(body_bytes=1000) as place:
        wire = await place.connected()
        await wire.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(600):  # more than is ever read together with the head
            await wire.send(b"1;" + b"x" * 1000 + b"\r\nx\r\n")
        await wire.send(b"0\r\n\r\n")
        await wire.refused(413, "request_too_large")


async def test_rest_of_a_body_that_was_answered_unread_is_taken_in_only_so_far(monkeypatch):
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.5)
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST /unread HTTP/1.1\r\ncontent-length: 1000000000\r\n\r\n")
        assert (await wire.answer())[0] == 200
        sent = 0
        while sent < 100_000_000 and not wire.reader.at_eof():
            await wire.send(b"x" * 1_000_000)
            sent += 1_000_000
        assert sent < 100_000_000
        await wire.closed()


async def test_slow_body_is_refused(settings):
    settings.SLUICE_BODY_SECONDS = 0.05
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\nx")
        await wire.refused(408, "request_timeout")


async def test_rest_of_a_body_that_was_answered_unread_is_not_waited_for():
    async with a_place(head_seconds=0.5) as place:
        wire = await place.connected()
        await wire.send(b"POST /unread HTTP/1.1\r\ncontent-length: 100\r\n\r\nx")
        assert (await wire.answer())[0] == 200
        assert await wire.closed() == b""
        wire = await place.connected()
        await wire.send(b"POST /unread HTTP/1.1\r\ncontent-length: 3\r\n\r\n")
        assert (await wire.answer())[0] == 200
        await wire.send(b"abc" + GET)
        assert (await wire.answer())[0] == 200


# -- readers ----------------------------------------------------------------------------------------------------------


async def endless(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not scope["gone"].is_set():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def test_reader_that_stops_reading_is_cut():
    gone = asyncio.Event()

    async def streaming(scope, receive, send):
        watch = asyncio.create_task(watched(receive, gone))
        await endless({**scope, "gone": gone}, receive, send)
        await watch

    async with a_place(streaming, write_seconds=0.05) as place:
        wire = await place.connected()
        await wire.send(GET)
        async with asyncio.timeout(120):
            await gone.wait()
        assert place.counted("connection", 499) == 1


async def watched(receive, gone):
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


@pytest.mark.parametrize(
    ("close", "bound"),
    [([], "idle_seconds"), ([], "write_seconds"), ([(b"connection", b"close")], "write_seconds")],
)
async def test_answer_that_nobody_reads_does_not_keep_its_connection(close, bound):
    size = 16 * 1024 * 1024

    async def large(scope, receive, send):
        headers = [(b"content-length", str(size).encode()), *close]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    async with a_place(large, **{bound: 0.05}) as place:
        wire = await place.connected()
        await wire.send(GET)
        await until(lambda: place.listener.connections)
        await place.empty()


# -- websockets -------------------------------------------------------------------------------------------------------

UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def test_websocket_keeps_its_place_until_it_ends():
    async with a_place() as place, connect(f"ws://{place.host}:{place.port}/") as socket:
        await socket.send("hi")
        assert await socket.recv() == "hi"
        assert place.listener.connections == 1


async def test_half_a_handshake_is_half_a_head():
    async with a_place(head_seconds=0.5) as place:
        wire = await place.connected()
        await wire.send(UPGRADE)
        await wire.refused(408, "request_timeout")


@pytest.mark.parametrize(
    "more", [b"x: " + b"y" * 9000 + b"\r\n\r\n", b"x: y\r\n" * 200 + b"\r\n"], ids=["long line", "many lines"]
)
async def test_handshake_that_the_parser_would_choke_on_is_refused(more):
    async with a_place(head_bytes=32768) as place:
        wire = await place.connected()
        await wire.send(UPGRADE + more)
        await wire.refused(431, "request_header_fields_too_large")


async def test_handshake_with_a_body_is_refused():
    async with a_place() as place:
        wire = await place.connected()
        await wire.send(UPGRADE + b"content-length: 1000000000\r\n\r\n")
        await wire.refused(400, "invalid_http")


async def test_refused_handshake_logs_no_error(caplog):
    async def refusing(scope, receive, send):
        from gateway.errors.refusal import Refusal

        raise Refusal(401, "missing_api_key", "Send a key.")

    async with a_place(refusing) as place:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{place.host}:{place.port}/")
        assert refused.value.response.status_code == 401
    assert [record.message for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


async def test_large_frame_ends_the_socket():
    async with a_place() as place:
        socket = await connect(f"ws://{place.host}:{place.port}/")
        await socket.send("x" * (2 * BOUNDS.frame_bytes + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd.code == 1009


async def test_websocket_whose_peer_reads_nothing_is_cut():
    async def chatty(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        with suppress(OSError):
            while True:
                await send({"type": "websocket.send", "bytes": b"x" * 65536})

    async with a_place(chatty, write_seconds=0.5) as place:
        wire = await place.connected()
        await wire.send(UPGRADE + b"\r\n")
        await wire.reader.readuntil(b"\r\n\r\n")
        wire.writer.transport.pause_reading()
        await place.empty()


# -- the process ------------------------------------------------------------------------------------------------------


def test_descriptors_are_raised_as_far_as_allowed(monkeypatch):
    limits, told = [(100, 1000)], []
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(server.resource, "setrlimit", lambda _, pair: limits.append(pair))
    monkeypatch.setattr(server.log, "warning", lambda event, **facts: told.append((event, facts)))
    server.raise_file_limit(500)
    assert limits[-1] == (500, 1000)
    assert told == []
    server.raise_file_limit(9000)
    assert limits[-1] == (1000, 1000)
    assert told[0][0] == "few_descriptors"
