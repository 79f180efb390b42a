"""What a socket remembers."""

from __future__ import annotations

from uuid import UUID

from gateway.apis.websocket.streams import History
from inference.messages import Message

PROJECT = UUID(int=1)


def turns(text):
    return (Message("user", (text,)),)


def test_history_forgets_the_oldest_response():
    history = History(most_responses=2)
    for name in "abc":
        history.keep(name, PROJECT, turns(name))
    assert history.turns_of("a", PROJECT) is None
    assert history.turns_of("b", PROJECT) == turns("b")


def test_history_is_bounded_in_characters():
    history = History(most_characters=10)
    history.keep("a", PROJECT, turns("x" * 6))
    history.keep("b", PROJECT, turns("y" * 6))
    assert history.turns_of("a", PROJECT) is None
    assert history.turns_of("b", PROJECT) == turns("y" * 6)
    history.keep("c", PROJECT, turns("z" * 11))
    assert history.turns_of("c", PROJECT) is None


def test_a_response_is_its_projects():
    history = History()
    history.keep("a", PROJECT, turns("a"))
    assert history.turns_of("a", UUID(int=2)) is None
