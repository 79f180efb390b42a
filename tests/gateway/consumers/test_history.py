"""What a socket remembers."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.consumers.history import Memory
from gateway.errors.refusal import Refusal
from inference.types import Message

PROJECT = UUID(int=1)


def turns(text):
    return (Message("user", text),)


def test_memory_forgets_the_oldest_response():
    memory = Memory(most_responses=2)
    for name in "abc":
        memory.keep(name, PROJECT, turns(name))
    with pytest.raises(Refusal):
        memory.turns_of("a", PROJECT)
    assert memory.turns_of("b", PROJECT) == turns("b")


def test_memory_is_bounded_in_characters():
    memory = Memory(most_characters=10)
    memory.keep("a", PROJECT, turns("x" * 6))
    memory.keep("b", PROJECT, turns("y" * 6))
    with pytest.raises(Refusal):
        memory.turns_of("a", PROJECT)
    assert memory.turns_of("b", PROJECT) == turns("y" * 6)
    memory.keep("c", PROJECT, turns("z" * 11))
    with pytest.raises(Refusal):
        memory.turns_of("c", PROJECT)


def test_nothing_comes_before_the_first_response():
    assert Memory().turns_of(None, PROJECT) == ()
