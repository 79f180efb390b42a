"""How a line reaches a gateway, and what is known of it where the connection ends."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from gateway.batches.sending import NotSentError, Request, Sender, UnknownError
from gateway.runtime.principal import Line

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-request-id: r\r\n\r\n{}"


def request() -> Request:
    return Request(Line(uuid4(), uuid4()), uuid4(), "/v1/chat/completions", b"{}")


def answered(connection: socket.socket) -> None:
    """Read a request, and answer it."""
    read(connection)
    connection.sendall(ANSWER)


def read(connection: socket.socket) -> None:
    got = b""
    while not got.endswith(b"\r\n\r\n{}"):
        part = connection.recv(65_536)
        assert part
        got += part


@contextmanager
def gateway(settings, *connections: Callable[[socket.socket], None]) -> Iterator[None]:
    """A gateway that does each of `connections` with one connection, closes it, and listens no more after the last."""
    listening = socket.create_server(("127.0.0.1", 0))
    settings.SLUICE_GATEWAY_URL = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def serve() -> None:
        for number, act in enumerate(connections, 1):
            connection, _ = listening.accept()
            if number == len(connections):
                listening.close()
            with connection:
                act(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join(120)
    assert not thread.is_alive()


def test_lines_share_a_connection(settings):
    def twice(connection: socket.socket) -> None:
        answered(connection)
        answered(connection)

    sender = Sender()
    with gateway(settings, twice):
        assert [sender.send(request()).status for _ in range(2)] == [200, 200]
    sender.close()


def test_a_connection_that_ended_while_nothing_was_sent_is_opened_anew(settings):
    sender = Sender()
    with gateway(settings, answered, answered):
        assert sender.send(request()).status == 200
        assert sender._known is not None
        assert select.select([sender._known[1].sock], [], [], 10)[0]
        assert sender.send(request()).status == 200
    sender.close()


def test_what_was_on_its_way_when_the_gateway_died_may_have_run(settings):
    """The next try found nobody listening, and the line counted as never sent: it was given up, and charged."""

    def dies(connection: socket.socket) -> None:
        answered(connection)
        read(connection)

    sender = Sender()
    with gateway(settings, dies):
        assert sender.send(request()).status == 200
        with pytest.raises(UnknownError):
            sender.send(request())
    with pytest.raises(NotSentError):
        sender.send(request())
