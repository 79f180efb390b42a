"""Which adapters are in memory: bounded in number, in bytes and for each tenant; what is wrong with one is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.errors import InvalidRequestError, ModelRefusedError, OverloadedError
from inference.execution.adapter_room import CLAIM_SECONDS, Bounds
from inference.execution.adapters import Adapter, Adapters


def read(folder: Path) -> Adapter:
    """An adapter of as many bytes as its folder's name ends with."""
    if folder.name.startswith("bad"):
        raise ModelRefusedError("it is bad")
    return Adapter(folder.name, object(), int(folder.name.rpartition("-")[2]))


def adapters_of(names: str, bounds: Bounds) -> Adapters:
    adapters = Adapters(read)
    adapters.offer({name: Path(f"{name}-10") for name in names.split()}, bounds)
    return adapters


def hold(adapters: Adapters, name: str, tenant: str) -> str:
    """Begin a request of the tenant with the adapter, and return its key."""
    key = adapters.load(name, tenant)
    adapters.hold(key, tenant)
    return key


def loaded(adapters: Adapters) -> list[str]:
    return [key.partition(":")[0] for key in adapters.loaded]


def test_a_tenant_at_its_limit_makes_room_with_its_own() -> None:
    adapters = adapters_of("mine a b c d", Bounds(most=4, per_tenant=2))
    adapters.load("mine", "me")
    for name in "abcd":
        adapters.load(name, "greedy")
    assert loaded(adapters) == ["mine", "c", "d"]
    hold(adapters, "c", "greedy")
    hold(adapters, "d", "greedy")
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


@pytest.mark.parametrize("lack", [MemoryError, OSError(24, "too many open files")], ids=["memory", "files"])
def test_one_for_which_memory_or_files_ran_out_is_not_refused_for_ever(lack: type[MemoryError] | OSError) -> None:
    """It was taken for one that can't be read: its requests got 400 until others came or the worker began anew."""
    memory = iter([False, False, True])

    def short_of_memory(folder: Path) -> Adapter:
        if not next(memory):
            raise lack
        return read(folder)

    adapters = Adapters(short_of_memory)
    adapters.offer({"mine": Path("mine-10")})
    adapters.check("mine")
    assert (adapters.states(), adapters.unchecked()) == ({"mine": ""}, None)  # it is read when a request wants it
    with pytest.raises(OverloadedError, match="be read now") as caught:
        adapters.load("mine", "me")
    assert caught.value.code == "adapters_in_use"
    assert adapters.load("mine", "me") == "mine:mine-10"


def test_one_that_was_refused_is_never_called_ready_since_others_are_offered() -> None:
    adapters = Adapters(read)
    adapters.offer({"bad": Path("bad")})
    adapters.check("bad")
    adapters.offer({"bad": Path("bad"), "another": Path("another-1")})
    assert adapters.states() == {}  # not known again until it was read
    while (name := adapters.unchecked()) is not None:
        adapters.check(name)
    assert adapters.states() == {"bad": "it is bad", "another": ""}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Attack:
    """Sixteen places, of which a tenant may use eight; every tenant has as many adapters as it likes."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.reads: list[str] = []
        self.clock = Clock()
        self.adapters = Adapters(self.read, clock=self.clock)
        bounds = bounds if bounds is not None else Bounds(16, per_tenant=8)
        names = [f"{tenant}{i}" for tenant in ("mine", "greedy", "third") for i in range(20)]
        self.adapters.offer({name: Path(f"{name}-10") for name in names}, bounds)

    def read(self, folder: Path) -> Adapter:
        self.reads.append(folder.name)
        return read(folder)

    def fill(self, tenant: str, count: int) -> list[str]:
        """Begin a request with each of as many adapters."""
        return [hold(self.adapters, f"{tenant}{i}", tenant) for i in range(count)]


def refusal(adapters: Adapters, name: str, tenant: str) -> str:
    with pytest.raises(OverloadedError) as caught:
        adapters.load(name, tenant)
    assert caught.value.code == "adapters_in_use"
    return caught.value.message


def test_what_was_read_before_anybody_used_it_counts_as_its_users() -> None:
    """Whoever used what a worker had read beforehand took all the places: only reading counted."""
    attack = Attack()
    adapters = attack.adapters
    for i in range(16):
        adapters.check(f"greedy{i}")
    held = attack.fill("greedy", 8)
    assert refusal(adapters, "greedy9", "greedy") == "you use 8 adapters at once, as many as you may: try again later"
    with pytest.raises(OverloadedError, match="you use 8 adapters"):
        adapters.used("greedy9", "greedy")  # which is in memory
    for i in range(8):
        hold(adapters, f"mine{i}", "me")
    adapters.release(held[3], "greedy")
    adapters.load("greedy9", "greedy")
    assert "greedy3" not in loaded(adapters)


def test_who_alternates_among_many_pushes_out_nobody_who_has_less() -> None:
    """The least recently used of all made room, which was that of who asks seldom."""
    attack = Attack()
    adapters = attack.adapters
    adapters.load("mine0", "me")
    for turn in range(60):
        for tenant in ("greedy", "third"):
            adapters.load(f"{tenant}{turn % 9}", tenant)
    assert "mine0" in loaded(adapters)
    assert attack.reads.count("mine0-10") == 1
    assert len(loaded(adapters)) == 16


def test_who_alternates_among_many_in_bytes_pushes_out_nobody_either() -> None:
    """Two adapters of a great rank filled the memory: only the number was bounded for each tenant."""
    attack = Attack(Bounds(16, nbytes=160, per_tenant=8))
    adapters = attack.adapters
    adapters.offer(
        {"big0": Path("big0-70"), "big1": Path("big1-70"), "whole": Path("whole-100"), "mine": Path("mine-10")},
        Bounds(16, nbytes=160, per_tenant=8),
    )
    adapters.load("mine", "me")
    key = hold(adapters, "big0", "greedy")
    assert refusal(adapters, "big1", "greedy") == "you use 1 adapters at once, as many as you may: try again later"
    adapters.release(key, "greedy")
    adapters.load("big1", "greedy")
    assert loaded(adapters) == ["mine", "big1"]
    adapters.load("whole", "greedy")  # greater than its part, and its only one
    assert loaded(adapters) == ["mine", "whole"]


def test_nothing_is_read_for_whom_there_is_no_room() -> None:
    """Each refusal cost a reading, as often as a tenant asked."""
    attack = Attack()
    attack.fill("greedy", 8)
    read_before = len(attack.reads)
    for i in range(8, 20):
        refusal(attack.adapters, f"greedy{i}", "greedy")
    assert len(attack.reads) == read_before


def test_nothing_is_read_again_for_whom_there_are_no_bytes() -> None:
    """As long as places were left, each refusal for want of bytes cost a reading, while no other tenant could load."""
    bounds = Bounds(16, nbytes=160, per_tenant=8)
    attack = Attack(bounds)
    adapters = attack.adapters
    folders = {name: Path(f"{name}-40") for name in ("one", "two", "three", "checked", "mine")}
    adapters.offer(folders, bounds)
    adapters.check("checked")
    hold(adapters, "one", "greedy")
    hold(adapters, "two", "greedy")
    for name in 5 * ["three", "checked"]:
        assert refusal(adapters, name, "greedy").startswith("you use 2 adapters")
    assert attack.reads == ["checked-40", "one-40", "two-40", "three-40"]
    adapters.offer(folders | {"three": Path("three-0")}, bounds)  # another one, of which nothing is known yet
    hold(adapters, "three", "greedy")
    assert attack.reads[-1] == "three-0"


def test_a_tenant_is_let_in_however_long_others_keep_all_places_in_use() -> None:
    """Two tenants whose requests overlapped without end kept every other out for ever."""
    attack = Attack()
    adapters = attack.adapters
    running = {tenant: attack.fill(tenant, 8) for tenant in ("greedy", "third")}
    rounds = 0
    while True:
        try:
            hold(adapters, "mine0", "me")
            break
        except OverloadedError:
            rounds += 1
            assert rounds < 3
        for tenant, keys in running.items():  # each begins another request with all of its own before one ends
            begun = []
            for i in range(8):
                try:
                    begun.append(hold(adapters, f"{tenant}{i}", tenant))
                except OverloadedError as error:
                    assert "makes room for another tenant's" in error.message  # noqa: PT017 - one of them only
            assert len(begun) >= 7
            for key in keys:
                adapters.release(key, tenant)
            running[tenant] = begun
    assert "mine0" in loaded(adapters)
    assert len(loaded(adapters)) == 16
    gone = ({f"{tenant}{i}" for tenant in running for i in range(8)} - set(loaded(adapters))).pop()
    refused = refusal(adapters, gone, gone[:-1])  # all are in use again, and nobody has less than who asks
    assert refused == "as many adapters as fit into memory are in use: try again later"
    for tenant in running:
        for i in range(8):
            if f"{tenant}{i}" != gone:
                hold(adapters, f"{tenant}{i}", tenant)  # nobody claims any more


def test_a_claim_ends_once_its_tenant_comes_back_no_more() -> None:
    attack = Attack()
    adapters = attack.adapters
    attack.fill("greedy", 8)
    attack.fill("third", 8)
    refusal(adapters, "mine0", "me")
    assert "makes room for another tenant's" in refusal(adapters, "greedy0", "greedy")
    hold(adapters, "greedy1", "greedy")
    attack.clock.now += CLAIM_SECONDS + 0.1
    hold(adapters, "greedy0", "greedy")


def test_tenants_that_claim_the_same_room_do_not_wait_for_each_other() -> None:
    """Each was refused what is in memory and idle, since the other claimed its room, until both claims had ended."""
    now = 100.0
    adapters = Adapters(read, clock=lambda: now)
    adapters.offer({name: Path(f"{name}-10") for name in "ab"}, Bounds(most=1))
    key = hold(adapters, "a", "long")
    for tenant in ("first", "second"):
        with pytest.raises(OverloadedError):
            adapters.load("b", tenant)
    adapters.release(key, "long")
    with pytest.raises(OverloadedError):
        adapters.load("a", "second")  # the other's turn
    assert adapters.load("a", "first") == key
    assert adapters.load("a", "second") == key


def test_an_adapter_that_several_use_is_no_ones_part() -> None:
    attack = Attack(Bounds(4, per_tenant=1))
    adapters = attack.adapters
    hold(adapters, "greedy0", "me")
    hold(adapters, "greedy0", "greedy")
    key = hold(adapters, "mine1", "me")
    hold(adapters, "third1", "greedy")
    assert refusal(adapters, "mine2", "me").startswith("you use 1 adapters")
    adapters.release(key, "me")
    adapters.load("mine2", "me")


def test_making_and_deleting_again_and_again_pushes_out_nobody() -> None:
    """A tenant's adapters come and go with the tables of all; those of others stay as they are."""
    attack = Attack()
    adapters, bounds = attack.adapters, Bounds(16, per_tenant=8)
    others = {f"mine{i}": Path(f"mine{i}-10") for i in range(12)}
    for turn in range(40):
        adapters.offer(others | {f"new{turn}-{i}": Path(f"new{turn}-{i}-10") for i in range(8)}, bounds)
        if not turn:
            for i in range(8):
                adapters.load(f"mine{i}", "me")
            running = hold(adapters, "mine0", "me")
        while (name := adapters.unchecked()) is not None:
            adapters.check(name)
        for i in range(8):
            hold(adapters, f"new{turn}-{i}", "greedy")
            adapters.release(f"new{turn}-{i}:new{turn}-{i}-10", "greedy")
    adapters.release(running, "me")
    assert {f"mine{i}" for i in range(8)} <= set(loaded(adapters))
    assert len(loaded(adapters)) <= 16
    assert [attack.reads.count(f"mine{i}-10") for i in range(8)] == [1] * 8
