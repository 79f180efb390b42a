"""The HTTP/1.1 of a pool's connections, against servers that write whatever bytes they are given."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from contextlib import asynccontextmanager

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from inference.clients.remote import connection
from inference.clients.remote.faults import AskError
from inference.clients.remote.options import RemoteOptions
from inference.clients.remote.pool import Pool
from inference.engine import EngineSpec
from inference.errors import EngineError, OverloadedError

LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def pool_at(*answers, closes=False, tls=None):
    """A pool, and the requests that its server has read; the server writes one of `answers` to each."""
    seen, left = [], list(answers)

    async def serve(reader, writer):
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                seen.append((head + await reader.readexactly(size), writer.get_extra_info("peername")))
                writer.write(left.pop(0))
                if closes:
                    break
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(f"{'https' if tls else 'http'}://127.0.0.1:{port}/base", LOCAL, lambda: None)
        user = object()
        pool.join(user, RemoteOptions(model="m"))
        try:
            yield pool, seen
        finally:
            await pool.leave(user)


async def test_a_request_says_what_it_must_and_the_connection_is_kept():
    async with pool_at(OK, OK) as (pool, seen):
        assert await pool.ask({"authorization": "Bearer k"}, "/x", {"a": 1}) == {}
        assert await pool.ask({}, "/y") == {}
    first, second = (request for request, _ in seen)
    assert first.startswith(b"POST /base/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n" in first
    assert first.endswith(b'{"a":1}')
    assert second.startswith(b"GET /base/y HTTP/1.1\r\n")
    assert seen[0][1] == seen[1][1]


async def test_a_credential_cannot_add_a_header():
    async with pool_at(OK) as (pool, seen):
        with pytest.raises(EngineError):
            await pool.ask({"authorization": "Bearer k\r\nx: y"}, "/x")
    assert not seen


async def test_interim_answers_are_passed_over():
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with pool_at(interim + OK, OK) as (pool, seen):
        assert [await pool.ask({}, "/x"), await pool.ask({}, "/x")] == [{}, {}]
    assert seen[0][1] == seen[1][1]


async def test_a_body_may_end_with_its_connection():
    async with pool_at(b"HTTP/1.1 200 OK\r\n\r\n[1, 2]", closes=True) as (pool, _):
        assert await pool.ask({}, "/x") == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-encoding: gzip\r\n\r\n{}",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * connection.MOST_HEAD,
        b"",
    ],
    ids=["short", "cut", "compressed", "no http", "upgrade", "endless head", "nothing"],
)
async def test_what_is_no_whole_answer_is_none(answer):
    async with pool_at(answer, closes=True) as (pool, _):
        with pytest.raises(AskError) as caught:
            await pool.ask({}, "/x")
        assert caught.value.status == 0


async def test_an_answer_nobody_asked_for_is_not_taken_for_the_next_ones():
    async with pool_at(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[666]", OK) as (pool, seen):
        assert [await pool.ask({}, "/x"), await pool.ask({}, "/x")] == [{}, {}]
    assert seen[0][1] != seen[1][1]


async def test_what_nobody_reads_is_not_taken_in(monkeypatch):
    monkeypatch.setattr(connection, "MOST_UNREAD", 1 << 16)
    size = 8 << 20
    async with pool_at(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size))) as (pool, _):
        made = await pool.connect(5)
        until = asyncio.get_running_loop().time() + 5
        await pool.post(made, "/x", {}, {}, 5)
        async with asyncio.timeout(60):
            while not made._is_paused:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
        assert made._size < 1 << 20
        read = 0
        while data := await made.read(until):
            read += len(data)
        assert read == size
        pool.finish(made)


@pytest.mark.parametrize(("size", "is_sent"), [(10, True), (64 << 20, False)], ids=["all", "a part"])
async def test_a_request_of_which_a_part_never_left_was_not_sent(size, is_sent):
    """Its server can't have read it, whenever it is cut."""
    over = asyncio.Event()

    async def serve(_, writer):
        await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", LOCAL, lambda: None)
        pool.join(server, RemoteOptions(model="m"))
        made = await pool.connect(5)
        assert not made.is_sent
        made.send(bytes(size))
        made.stop(ConnectionAbortedError())
        assert made.is_sent is is_sent
        made.send(b"again")
        assert not made.is_sent
        over.set()


async def test_a_connection_that_is_made_while_all_leave_is_closed(monkeypatch):
    """It was given to its request all the same, and stayed open behind the engine that had ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    async def serve(reader, writer):
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", LOCAL, lambda: None)
        pool.join(server, RemoteOptions(model="m"))
        create = loop.create_connection

        async def create_while_it_leaves(*arguments, **options):
            made = await create(*arguments, **options)
            await pool.leave(server)
            return made

        monkeypatch.setattr(loop, "create_connection", create_while_it_leaves)
        with pytest.raises(EngineError):
            await pool.connect(5)
        async with asyncio.timeout(60):
            await ended.wait()


def test_it_works_on_uvloop():
    """Whose transports are none of asyncio's classes."""

    async def asked():
        async with pool_at(OK) as (pool, _):
            return await pool.ask({}, "/x")

    assert uvloop.run(asked()) == {}


async def test_tls_is_checked_against_the_address(tmp_path, monkeypatch):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "model server")])
    now = dt.datetime.now(dt.UTC)

    def certificate(address):
        """Return a server's context with a certificate for `address`, and a client's that trusts it."""
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
            .add_extension(names, critical=False).sign(key, hashes.SHA256())
        )  # fmt: skip
        file, pem = tmp_path / "pem", serialization.Encoding.PEM
        file.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + made.public_bytes(pem)
        )
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(file)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(file)
        return server, client

    for address, is_right in (("127.0.0.1", True), ("127.0.0.2", False)):
        server, client = certificate(address)
        monkeypatch.setattr("inference.clients.remote.pool.ssl.create_default_context", lambda client=client: client)
        async with pool_at(OK, tls=server) as (pool, seen):
            if is_right:
                assert await pool.ask({}, "/x") == {}
            else:
                with pytest.raises(AskError, match=r"(?i)certificate"):
                    await pool.ask({}, "/x")
            assert len(seen) == is_right


async def test_a_path_cannot_add_a_request():
    async with pool_at(OK) as (pool, seen):
        for path in ("/a HTTP/1.1\r\nhost: x\r\n\r\nPOST /admin", "/a b", "/\x00", "/ü"):
            with pytest.raises(EngineError, match="path"):
                await pool.ask({}, path)
        assert not seen


async def test_an_answer_that_ends_with_its_connection_leaves_nothing_behind():
    """Its end mark was read, and nobody waited for the rest when the server closed."""
    done = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")
        await done.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", LOCAL, lambda: None)
        user = object()
        pool.join(user, RemoteOptions(model="m"))
        try:
            made = await pool._connected()
            made.send(pool._request("GET", "/x", {}, b""))
            assert await made.head(asyncio.get_running_loop().time() + 5) == 200
            pool.finish(made)
            assert pool._busy == {made}
            done.set()
            async with asyncio.timeout(60):
                while pool._busy:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
        finally:
            await pool.leave(user)


@pytest.mark.parametrize("probe", ["/a b", "/a\r\nb", "a", "/ü", 5])
def test_a_probe_is_a_path(probe):
    spec = EngineSpec("d", "openai", "http://127.0.0.1:1", {"model": "m", "shared_prefixes": True, "probe": probe})
    with pytest.raises(ValueError, match="probe"):
        RemoteOptions.of(spec)


async def test_a_name_that_nobody_answers_for_is_looked_up_once_and_holds_up_no_other(monkeypatch):
    """Each request had it looked up again, until no thread was left in which anything could be."""
    answered, asked_for = threading.Event(), []
    resolve = socket.getaddrinfo

    def hang(host, port, *arguments, **more):
        if host != "model.example":
            return resolve(host, port, *arguments, **more)
        asked_for.append(host)
        answered.wait(30)
        return resolve("127.0.0.1", port, *arguments, **more)

    monkeypatch.setattr("socket.getaddrinfo", hang)
    async with pool_at(OK) as (pool, seen):
        pool._base = pool._base._replace(netloc=f"model.example:{pool._port}")
        try:
            for _ in range(40):
                with pytest.raises(OverloadedError):
                    await pool.connect(0.005)
            async with asyncio.timeout(60):
                await asyncio.get_running_loop().getaddrinfo("localhost", 80)
            assert asked_for == ["model.example"]
            waiting = [asyncio.create_task(pool.connect(30)) for _ in range(3)]
            leaving = asyncio.create_task(pool.connect(30))
            await asyncio.sleep(0)
            leaving.cancel()
        finally:
            answered.set()
        for connection in await asyncio.gather(*waiting):
            pool.cut(connection)
        assert asked_for == ["model.example"]
        assert await pool.ask({}, "/x") == {}
    assert len(asked_for) == 2, "what it means is asked anew for the next connection"
    assert len(seen) == 1
