"""What arrives of an answer at once."""

from __future__ import annotations

from inference.clients.remote.pieces import Pieces, call_piece
from inference.clients.remote.sse import EventReader
from inference.types import CallPiece, Delta, Usage

USAGE = Usage(1, 0, 1)


def deltas(pieces, *, is_new=True):
    return list(pieces.deltas(USAGE, is_new=is_new))


def test_runs_of_a_kind_are_one_delta_in_their_order():
    pieces = Pieces()
    for kind, text in [("reasoning", "a"), ("reasoning", "b"), ("text", "c"), ("text", ""), ("reasoning", "d")]:
        pieces.add(kind, text)
    pieces.call([CallPiece("c1", "f")])
    pieces.call([CallPiece(arguments="{}")])
    assert deltas(pieces) == [
        Delta("", USAGE, reasoning="ab"),
        Delta("c", USAGE),
        Delta("", USAGE, reasoning="d"),
        Delta("", USAGE, calls=(CallPiece("c1", "f"), CallPiece(arguments="{}"))),
    ]


def test_nothing_is_told_unless_the_usage_is_new():
    assert deltas(Pieces()) == [Delta("", USAGE)]
    assert deltas(Pieces(), is_new=False) == []


def test_pieces_of_calls_are_read():
    chunk = (
        b'data: {"choices":[{"delta":{"tool_calls":['
        b'{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}},'
        b'{"index":0,"function":{"arguments":"{}"}},{"index":0,"id":null,"function":null}]}}]}\n\n'
    )
    [arrived], garbage = EventReader().events(chunk)
    assert garbage is None
    [choice] = arrived.choices
    assert [call_piece(call) for call in choice.delta.tool_calls] == [
        CallPiece("c1", "f"),
        CallPiece(arguments="{}"),
        CallPiece(),
    ]
