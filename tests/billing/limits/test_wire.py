"""What Redis says, as it arrives: in pieces, beside what wasn't asked for, and after nobody waits any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from billing.limits.redis.wire import Command, IncompleteError, ReplyError, Wire, reply

REPLIES = {
    b":-12\r\n": -12,
    b"*3\r\n:1\r\n*1\r\n:2\r\n$2\r\n\r\n\r\n": [1, [2], b"\r\n"],
    b"$-1\r\n": None,
    b"_\r\n": None,
    b"+OK\r\n": b"OK",
}


def opened(on_lost=print):
    """A wire over a transport that keeps what is written."""
    transport = Mock()
    connection = SimpleNamespace(_reader=None, _writer=SimpleNamespace(transport=transport, close=transport.close))
    return Wire(connection, on_lost), transport


@pytest.mark.parametrize(("data", "meant"), REPLIES.items())
def test_a_reply_is_read_once_its_end_is_there(data, meant):
    assert reply(b"+before\r\n" + data + b":1\r\n", 9) == (meant, 9 + len(data))
    for size in range(len(data)):
        with pytest.raises(IncompleteError):
            reply(data[:size], 0)


def test_an_error_is_a_value_and_garbage_is_none():
    answer, _ = reply(b"-ERR no\r\n", 0)
    assert isinstance(answer, ReplyError)
    assert str(answer) == "ERR no"
    for garbage in (b"?1\r\n", b":one\r\n", b"\r\n"):
        with pytest.raises((ValueError, IndexError)):
            reply(garbage, 0)


async def test_answers_in_pieces_go_to_the_commands_in_their_order():
    wire, transport = opened()
    first, second = Command("GET", "a"), Command("GET", "b")
    ended = []
    wire.send([first, second], ended.append)
    transport.write.assert_called_once_with(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n")
    for byte in b":1\r\n>1\r\n+unasked\r\n*2\r\n:2\r\n:3\r\n":
        wire.data_received(bytes([byte]))
    assert [first.future.result(), second.future.result(), ended] == [1, [2, 3], [[]]]
    assert not wire.is_waiting


async def test_of_a_forgotten_script_nothing_has_run_and_the_others_are_answered():
    wire, _ = opened()
    first, second = Command("EVALSHA", "x"), Command("GET", "b")
    ended = []
    wire.send([first, second], ended.append)
    wire.data_received(b"-NOSCRIPT No matching script.\r\n:2\r\n")
    assert ended == [[first]]
    assert not first.future.done()
    assert second.future.result() == 2


async def test_an_answer_that_nobody_waits_for_is_told():
    wire, _ = opened()
    unheard = []
    left = Command("GET", "a", unheard=unheard.append)
    wire.send([left], lambda _: None)
    left.future.cancel()
    wire.data_received(b":1\r\n")
    assert unheard == [1]


async def test_what_it_cannot_say_ends_it_once():
    lost = []
    wire, _ = opened(lost.append)
    wire.data_received(b":1\r\n")  # nothing was asked
    wire.connection_lost(None)
    assert [str(error) for error in lost] == ["an answer to nothing"]


async def test_a_connection_that_ends_behind_the_last_answer_is_not_taken_for_one_that_works():
    wire, _ = opened()
    asked = asyncio.ensure_future(wire.ask([Command("PING")]))
    await asyncio.sleep(0)
    wire.data_received(b"+PONG\r\n")
    wire.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await asked
