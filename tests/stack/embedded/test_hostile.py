"""Clients without a key that hold on to the gateway: each is ended with its own answer, and nobody else notices."""

from __future__ import annotations

import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.stack.stack import PATIENCE
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

HALF_OPEN = 200
GIGABYTE = 1 << 30
MOST_TAKEN = 32 << 20  # of a gigabyte, what sockets' buffers hold included
ASKED = 50


def connected(stack):
    return socket.create_connection(("127.0.0.1", stack.port), timeout=PATIENCE)


def in_a_head(stack):
    """A connection on which a head was begun; one that says nothing at all would be closed without an answer."""
    connection = connected(stack)
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
    return connection


def status_of(connection):
    """The status of the answer that a connection brings."""
    with connection:
        return int(connection.recv(65536).split(b" ", 2)[1])


def flood(stack, head, piece):
    """Send `head`, then a gigabyte of `piece` or what of it is taken; return the answer's status and the bytes sent."""
    connection, sent = connected(stack), 0
    connection.sendall(head)
    try:
        while sent < GIGABYTE:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:  # no more is taken
        pass
    return status_of(connection), sent


def endless_head(stack):
    return flood(stack, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ", b"x" * 65536)


def upload(stack):
    head = b"POST /accounts/login/ HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    return flood(stack, head, b"10000\r\n" + b"x" * 65536 + b"\r\n")


def answers(stack):
    """What the gateway counts: answers by endpoint and status."""
    text = ask(f"{stack.base_url}/metrics").text
    found = re.findall(r'sluice_requests_total\{endpoint="([^"]+)",status="(\d+)"\} (\S+)', text)
    return Counter({(endpoint, int(status)): int(float(count)) for endpoint, status, count in found})


def paying(stack):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    return ask(f"{stack.base_url}/v1/chat/completions", body, key=stack.tenants["max"]["key"]).status


def test_attackers_are_ended_with_an_answer_and_others_are_served(stack):
    before = answers(stack)
    with ExitStack() as opened, ThreadPoolExecutor(3) as threads:
        slow = [opened.enter_context(in_a_head(stack)) for _ in range(HALF_OPEN)]
        endless, uploaded = threads.submit(endless_head, stack), threads.submit(upload, stack)
        served = threads.submit(lambda: [paying(stack) for _ in range(ASKED)])
        assert served.result() == [200] * ASKED
        assert [status_of(connection) for connection in slow] == [408] * HALF_OPEN
        for attack, status in ((endless, 431), (uploaded, 413)):
            answered, sent = attack.result()
            assert answered == status
            assert sent < MOST_TAKEN
    counted = answers(stack) - before
    assert counted["connection", 408] == HALF_OPEN
    assert counted["connection", 431] == 1
    assert sum(count for (_, status), count in counted.items() if status == 413) == 1
    assert counted["/v1/chat/completions", 200] == ASKED
