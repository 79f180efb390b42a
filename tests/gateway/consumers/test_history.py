"""What a socket remembers."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.consumers.history import History
from gateway.errors.refusal import Refusal
from inference.messages import Message

PROJECT = UUID(int=1)


def turns(text):
    return (Message("user", (text,)),)


def test_history_forgets_the_oldest_response():
    history = History(most_responses=2)
    for name in "abc":
        history.keep(name, PROJECT, turns(name))
    with pytest.raises(Refusal):
        history.turns_of("a", PROJECT)
    assert history.turns_of("b", PROJECT) == turns("b")


def test_history_is_bounded_in_characters():
    history = History(most_characters=10)
    history.keep("a", PROJECT, turns("x" * 6))
    history.keep("b", PROJECT, turns("y" * 6))
    with pytest.raises(Refusal):
        history.turns_of("a", PROJECT)
    assert history.turns_of("b", PROJECT) == turns("y" * 6)
    history.keep("c", PROJECT, turns("z" * 11))
    with pytest.raises(Refusal):
        history.turns_of("c", PROJECT)


def test_nothing_comes_before_the_first_response():
    assert History().turns_of(None, PROJECT) == ()
