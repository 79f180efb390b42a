"""What arrives of an answer at once."""

from __future__ import annotations

import pytest

from inference.clients.remote.pieces import Calls, Pieces
from inference.clients.remote.sse import Call, EventReader, Function
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


def rebuilt(*pieces):
    """The calls that pieces (index, id, name, arguments) are told as."""
    calls, found = Calls(), {}
    for index, identifier, name, arguments in pieces:
        told = calls.take(Call(index, identifier, Function(name, arguments)))
        if told is not None:
            assert bool(told.id and told.name) is (told.index not in found), "its first piece says what it is"
            known = found.setdefault(told.index, [told.id, told.name, ""])
            known[2] += told.arguments
    return [tuple(call) for call in found.values()]


F, G = ("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, *F), (1, *G)],
        [(0, "a", "f", ""), (1, "b", "g", ""), (0, None, None, '{"x":1}'), (1, None, None, '{"y":2}')],
        [(0, "a", "f", '{"x"'), (1, "b", "g", '{"y"'), (1, None, None, ":2}"), (0, None, None, ":1}")],
        [(0, "a", "f", '{"x"'), (0, "a", "f", ":1}"), (1, "b", "g", '{"y"'), (1, None, "g", ":2}")],
        [(0, "a", None, None), (0, None, "f", '{"x":1}'), (1, "b", None, None), (1, None, "g", '{"y":2}')],
        [(0, "a", None, '{"x"'), (0, None, "f", ":1}"), (1, *G)],
        [(0, "a", "f", '{"x"'), (0, "z", None, ":1}"), (1, *G)],
        [(0, *F), (0, *G)],
        [(0, *F), (0, "", "", ""), (1, *G), (1, None, None, None), (2, "c", None, "{}")],
        [(None, *F), (None, *G)],
        [(None, "a", "f", ""), (None, "b", "g", '{"y"'), (None, "a", None, '{"x":1}'), (None, "b", None, ":2}")],
        [(None, "a", None, None), (None, None, "f", '{"x"'), (None, None, "f", ":1}"), (None, *G)],
        [("0", *F), ("1", *G)],
        [(0, "a", "f", '{"x"'), (None, "a", None, ":1}"), (1, *G)],
    ],
)
def test_a_call_is_told_once_with_all_its_arguments(pieces):
    assert rebuilt(*pieces) == [F, G]


def test_a_call_without_an_id_is_given_one():
    [(one, *_), (other, *_)] = rebuilt((0, None, "f", "{}"), (1, "", "f", "{}"))
    assert one.startswith("call_")
    assert one != other


def test_calls_without_index_and_id_are_told_apart_by_name():
    calls = rebuilt((None, None, "f", '{"x"'), (None, None, None, ":1}"), (None, None, "g", "{}"))
    assert [call[1:] for call in calls] == [("f", '{"x":1}'), ("g", "{}")]


def test_pieces_of_calls_are_read():
    chunk = (
        b'data: {"choices":[{"delta":{"tool_calls":['
        b'{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}},'
        b'{"index":0,"function":{"arguments":"{}"}},{"index":0,"id":null,"function":null}]}}]}\n\n'
    )
    [arrived], garbage = EventReader().events(chunk)
    assert garbage is None
    [choice] = arrived.choices
    calls = Calls()
    assert [calls.take(call) for call in choice.delta.tool_calls] == [
        CallPiece("c1", "f"),
        CallPiece(arguments="{}"),
        None,
    ]
