"""Which adapters are in memory: bounded in number, in bytes and for each tenant; what is wrong with one is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import InvalidRequestError, ModelRefusedError, OverloadedError
from inference.execution.adapters import Adapter, Adapters, Bounds


def read(folder: Path) -> Adapter:
    """An adapter of as many bytes as its folder's name ends with."""
    if folder.name.startswith("bad"):
        raise ModelRefusedError("it is bad")
    return Adapter(folder.name, object(), int(folder.name.rpartition("-")[2]))


def adapters_of(names: str, bounds: Bounds) -> Adapters:
    adapters = Adapters(read)
    adapters.offer({name: Path(f"{name}-10") for name in names.split()}, bounds)
    return adapters


def loaded(adapters: Adapters) -> list[str]:
    return [key.partition(":")[0] for key in adapters.loaded]


def test_a_tenant_at_its_limit_makes_room_with_its_own() -> None:
    adapters = adapters_of("mine a b c d", Bounds(most=4, per_tenant=2))
    adapters.load("mine", "me")
    for name in "abcd":
        adapters.load(name, "greedy")
    assert loaded(adapters) == ["mine", "c", "d"]
    adapters.hold(adapters.load("c", "greedy"))
    adapters.hold(adapters.load("d", "greedy"))
    with pytest.raises(OverloadedError, match="you use 2 adapters") as caught:
        adapters.load("a", "greedy")
    assert caught.value.code == "adapters_in_use"
    adapters.load("a", "me")
    assert loaded(adapters) == ["mine", "c", "d", "a"]


def test_the_memory_is_bounded_in_bytes() -> None:
    adapters = Adapters(read)
    folders = {"small": Path("small-10"), "half": Path("half-50"), "whole": Path("whole-90"), "over": Path("over-101")}
    adapters.offer(folders, Bounds(nbytes=100))
    adapters.load("small")
    adapters.load("half")
    adapters.load("whole")
    assert loaded(adapters) == ["small", "whole"] or loaded(adapters) == ["whole"]
    assert adapters.nbytes <= 100
    with pytest.raises(InvalidRequestError, match="101 bytes of memory, where all adapters have 100") as caught:
        adapters.load("over")
    assert caught.value.code == "adapter_refused"


def test_those_offered_are_read_once_before_anybody_uses_them() -> None:
    adapters = Adapters(read)
    adapters.offer({"a": Path("a-1"), "bad": Path("bad"), "b": Path("b-1"), "c": Path("c-1")}, Bounds(2))
    while (name := adapters.unchecked()) is not None:
        adapters.check(name)
    assert adapters.states() == {"a": "", "bad": "it is bad", "b": "", "c": ""}
    assert sorted(loaded(adapters)) == ["a", "b"]  # the third found no room, and nothing made any
    assert sorted(adapters.in_memory()) == ["a", "b"]
    adapters.load("c", "me")
    assert "c" in loaded(adapters)
    assert "c" in adapters.in_memory()
    assert len(adapters.in_memory()) == 2
    adapters.offer({"a": Path("a-1"), "bad": Path("good-1")}, Bounds(2))
    assert adapters.states() == {"a": ""}
    assert adapters.unchecked() == "bad"


def test_one_that_was_refused_is_never_called_ready_since_others_are_offered() -> None:
    adapters = Adapters(read)
    adapters.offer({"bad": Path("bad")})
    adapters.check("bad")
    adapters.offer({"bad": Path("bad"), "another": Path("another-1")})
    assert adapters.states() == {}  # not known again until it was read
    while (name := adapters.unchecked()) is not None:
        adapters.check(name)
    assert adapters.states() == {"bad": "it is bad", "another": ""}
