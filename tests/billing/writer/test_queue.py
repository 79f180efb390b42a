"""The queue's promises when flushes fail, answers get lost, callers leave and the end comes."""

from __future__ import annotations

import asyncio

import pytest

from billing.models import Hold, LedgerTransfer, UsageRecord, Wallet
from billing.writer import WriterBusyError, WriterClosedError, entry, queue
from billing.writer.entry import ConflictError, OutcomeUnknownError
from billing.writer.operations import Held, Locked, Release, Settled
from billing.writer.queue import Writer
from tests.billing.writer.world import (
    extend,
    make_wallet,
    open_desk,
    put_forward,
    release,
    renew,
    reserve,
    settle,
    until,
)

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


class Faulty:
    """A driver with faults around the real one: `before` and `after` are run with each flush's operations."""

    def __init__(self, driver):
        self.driver = driver
        self.rest, self.max_age, self.reserve_timeout = driver.rest, driver.max_age, driver.reserve_timeout
        self.flushed = []
        self.before = self.after = None
        self.gate = None

    async def flush(self, operations, *, waits=False):
        self.flushed.append(list(operations))
        if self.gate is not None:
            await self.gate.wait()
        if self.before is not None:
            self.before(operations)
        answers = await self.driver.flush(operations, waits=waits)
        if self.after is not None:
            self.after(operations)
        return answers

    async def close(self):
        await self.driver.close()


@pytest.fixture
def faulty(desk):
    desk.writer._driver = Faulty(desk.writer._driver)
    return desk.writer._driver


def times(count, error):
    """A fault that raises `error` the first `count` times."""
    left = [count]

    def fault(_):
        if left[0]:
            left[0] -= 1
            raise error

    return fault


def test_a_lost_reply_is_asked_for_again_by_id(desk, faulty):
    wallet = make_wallet(credit=100)
    made, other = reserve(wallet, 60), reserve(wallet, 60, 40)
    faulty.after = times(1, OutcomeUnknownError("reply lost"))
    assert desk.ask(made, other) == [Held(60, 0), Held(40, 0)]
    faulty.after = times(1, OutcomeUnknownError("reply lost"))
    assert desk.ask(settle(made, 50), release(other), extend(other, 90)) == [
        Settled(50, 50, 0), Settled(0, 50, 0), desk.ask_one(extend(other, 90)),
    ]  # fmt: skip
    assert UsageRecord.objects.count() == 2
    assert LedgerTransfer.objects.filter(request=made.request).count() == 1


def test_a_reserve_of_long_unknown_outcome_is_left_to_the_sweep(desk, faulty, monkeypatch):
    monkeypatch.setattr(entry, "RESEND_SECONDS", 0)
    wallet = make_wallet(credit=100)
    lost, made = reserve(wallet, 10), reserve(wallet, 20)
    desk.ask_one(made)
    faulty.flushed.clear()
    faulty.after = times(1, OutcomeUnknownError("reply lost"))

    async def leave():
        caller = asyncio.ensure_future(desk.writer.submit(lost))
        closing = asyncio.ensure_future(desk.writer.submit(settle(made, 5)))
        await until(lambda: faulty.flushed)
        caller.cancel()
        return await closing

    assert desk.runner.run(leave()) == Settled(5, 95, 10)
    assert [type(op).__name__ for op in faulty.flushed[-1]] == ["Settle"]
    assert Hold.objects.get().id == lost.request


def test_a_reserve_of_long_unknown_outcome_is_not_sent_again_though_its_caller_waits(desk, faulty, monkeypatch):
    """Its hold may have been swept: reserved anew under the same id it could never be closed."""
    monkeypatch.setattr(entry, "RESEND_SECONDS", 0)
    wallet = make_wallet(credit=100)
    lost = reserve(wallet, 10)
    faulty.after = times(1, OutcomeUnknownError("reply lost"))
    with pytest.raises(WriterBusyError, match="no answer"):
        desk.ask_one(lost)
    assert faulty.flushed == [[lost]]
    assert Hold.objects.get().id == lost.request
    assert isinstance(desk.ask_one(settle(lost, 3)), Settled)


def test_a_reserve_that_was_sent_again_is_given_up_before_the_lease_of_its_hold_is_over(desk, faulty, monkeypatch):
    monkeypatch.setattr(entry, "RESEND_SECONDS", 0.4)
    monkeypatch.setattr(entry, "RESEND_ENDS_SECONDS", 0.5)
    faulty.reserve_timeout = 2.0
    lost = reserve(make_wallet(credit=100), 10)

    def lose_and_fall_silent(_):
        faulty.after, faulty.gate = None, asyncio.Event()
        raise OutcomeUnknownError("reply lost")

    async def settled():
        faulty.gate = None
        async with asyncio.timeout(5):
            return await desk.writer.submit(settle(lost, 3))

    faulty.after = lose_and_fall_silent
    with pytest.raises(WriterBusyError):
        desk.ask_one(lost)
    assert desk.runner.run(settled()) == Settled(3, 97, 0)
    assert [[type(op).__name__ for op in flushed] for flushed in faulty.flushed] == [
        ["Reserve"], ["Reserve"], ["Settle"],
    ]  # fmt: skip


def test_a_conflict_is_tried_again_and_then_in_halves(desk, faulty):
    wallet = make_wallet(credit=100)
    faulty.before = times(queue.CONFLICT_TRIES, ConflictError("in the way"))
    assert desk.ask_one(reserve(wallet, 1)) == Held(1, 99)
    blocked = make_wallet(credit=100)

    held = []
    faulty.after = held.extend

    def held_by_somebody(operations):
        if any(op.wallet == blocked.pk for op in operations):
            if len(held) == 7:  # the others have their answers
                put_forward(asyncio.get_running_loop(), 1000)
            raise ConflictError("locked")

    faulty.before = held_by_somebody
    faulty.reserve_timeout = 500
    answers = desk.ask(*(reserve(wallet, 1) for _ in range(6)), reserve(blocked, 1), reserve(wallet, 1))
    assert [type(answer) for answer in answers] == [*[Held] * 6, WriterBusyError, Held]


def test_an_extend_and_a_settle_wait_for_their_locked_wallet(desk, faulty):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    faulty.reserve_timeout = 0  # what runs already is not given up as early as what is new
    for operation, answer in ((extend(made, 20), Held(20, 80)), (settle(made, 7), Settled(7, 93, 0))):
        faulty.before = times(2 * queue.CONFLICT_TRIES + 3, ConflictError("locked"))
        assert desk.ask_one(operation) == answer


@pytest.mark.parametrize("leaves", ["cancelled", "impatient"])
def test_an_abandoned_reserve_that_holds_is_released(desk, faulty, leaves):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 60)

    async def leave():
        faulty.gate = asyncio.Event()
        caller = asyncio.ensure_future(desk.writer.submit(made))
        await until(lambda: faulty.flushed)
        if leaves == "cancelled":
            caller.cancel()
            await asyncio.wait({caller})
            assert caller.cancelled()
        else:
            with pytest.raises(WriterBusyError):
                await caller
        faulty.gate.set()
        await until(lambda: desk.writer._task.done() and len(faulty.flushed) > 1)

    if leaves == "impatient":
        faulty.reserve_timeout = 0.01
    desk.runner.run(leave())
    assert [type(op) for op in faulty.flushed[-1]] == [Release]
    assert Wallet.objects.get(pk=wallet.pk).held == 0
    assert UsageRecord.objects.get(request=made.request).finish == "abandoned"


def test_what_nobody_waits_for_is_not_started_but_closings_are(desk, faulty):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    faulty.flushed.clear()

    async def leave():
        faulty.gate = asyncio.Event()
        first = asyncio.ensure_future(desk.writer.submit(renew(made)))
        await until(lambda: faulty.flushed)
        left = [desk.writer.submit(op) for op in (reserve(wallet, 1), extend(made, 20), settle(made, 5))]
        tasks = [asyncio.ensure_future(one) for one in left]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        faulty.gate.set()
        await asyncio.wait({first, *tasks})
        await desk.writer._task

    desk.runner.run(leave())
    assert [[type(op).__name__ for op in flush] for flush in faulty.flushed] == [["Renew"], ["Settle"]]
    assert UsageRecord.objects.get().charge == 5


def test_reserves_are_refused_while_the_writer_is_behind_and_settles_wait(desk, faulty, monkeypatch):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)

    async def pile_up():
        faulty.gate = asyncio.Event()
        faulty.max_age = 0.005
        busy = asyncio.ensure_future(desk.writer.submit(renew(made)))
        await until(lambda: desk.writer.is_behind)
        with pytest.raises(WriterBusyError):
            await desk.writer.submit(reserve(wallet, 1))
        closing = asyncio.ensure_future(desk.writer.submit(settle(made, 5)))
        await asyncio.sleep(0)
        faulty.max_age = 30
        monkeypatch.setattr(queue, "MAX_QUEUE", 1)
        with pytest.raises(WriterBusyError):
            await desk.writer.submit(reserve(wallet, 1))
        faulty.gate.set()
        await busy
        assert await closing == Settled(5, 95, 0)
        assert desk.writer.oldest_age == 0

    desk.runner.run(pile_up())


def test_everything_that_waited_goes_into_one_flush_once_per_request(desk, faulty):
    wallet = make_wallet(credit=10_000)
    made = [reserve(wallet, 1) for _ in range(300)]

    async def pile_up():
        faulty.gate = asyncio.Event()
        first = asyncio.ensure_future(desk.writer.submit(reserve(wallet, 1)))
        await until(lambda: faulty.flushed)
        waiting = [asyncio.ensure_future(desk.writer.submit(op)) for one in made for op in (one, settle(one, 1))]
        await asyncio.sleep(0)
        faulty.gate.set()
        answers = await asyncio.gather(first, *waiting)
        assert all(isinstance(answer, Held | Settled) for answer in answers)

    desk.runner.run(pile_up())
    sizes = [len(flush) for flush in faulty.flushed]
    assert sizes[0] == 1
    assert max(sizes) == queue.MAX_FLUSH
    assert all(len({op.request for op in flush}) == len(flush) for flush in faulty.flushed)
    assert len(sizes) <= 5


def test_close_applies_what_waits_and_refuses_the_rest():
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    with open_desk() as desk:
        desk.ask_one(made)

        async def leave():
            closing = asyncio.ensure_future(desk.writer.submit(settle(made, 5)))
            await asyncio.sleep(0)
            await desk.writer.close()
            assert closing.done()
            assert await closing == Settled(5, 95, 0)
            with pytest.raises(WriterClosedError):
                await desk.writer.submit(reserve(wallet, 1))

        desk.runner.run(leave())
    assert not Hold.objects.exists()


def test_close_gives_up_a_database_that_is_away(monkeypatch):
    monkeypatch.setattr(queue, "CLOSE_SECONDS", 0.05)
    wallet = make_wallet(credit=100)

    class Away:
        rest, max_age, reserve_timeout = 0.0, 30.0, 30.0

        async def flush(self, operations, *, waits=False):
            raise OutcomeUnknownError("nobody there")

        async def close(self):
            pass

    async def leave():
        writer = Writer(Away())
        caller = asyncio.ensure_future(writer.submit(reserve(wallet, 1)))
        await asyncio.sleep(0)
        await writer.close()
        with pytest.raises(WriterClosedError):
            await caller

    asyncio.run(leave())


def test_a_reserve_whose_caller_is_cancelled_in_the_turn_of_its_answer_is_released(desk, faulty, monkeypatch):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 60)
    callers = []
    deliver = desk.writer._deliver

    def answer_and_cancel(batch, answers):
        deliver(batch, answers)
        for caller in callers:
            caller.cancel()

    monkeypatch.setattr(desk.writer, "_deliver", answer_and_cancel)

    async def leave():
        callers.append(asyncio.ensure_future(desk.writer.submit(made)))
        await asyncio.wait(callers)
        assert callers[0].cancelled()
        await until(lambda: desk.writer._task.done())  # noqa: PLW0108 - the task may be another by then

    desk.runner.run(leave())
    assert Wallet.objects.get(pk=wallet.pk).held == 0
    assert UsageRecord.objects.get(request=made.request).finish == "abandoned"


class Guarded(Faulty):
    """A driver that finds the wallets in `taken` locked, unless the flush waits its turn."""

    def __init__(self, driver, *taken):
        super().__init__(driver)
        self.taken = set(taken)
        self.turns = []

    async def flush(self, operations, *, waits=False):
        self.flushed.append(list(operations))
        free = [op for op in operations if waits or op.wallet not in self.taken]
        if waits:
            self.turns.append(list(operations))
        answers = iter(await self.driver.flush(free))
        return [next(answers) if op in free else Locked() for op in operations]


def test_operations_of_a_request_keep_their_order_while_their_wallet_is_locked(desk, monkeypatch):
    monkeypatch.setattr(entry, "SKIPS_BEFORE_TURN", 10**6)
    locked, free = make_wallet(credit=100), make_wallet(credit=100)
    made, other = reserve(locked, 10), reserve(free, 10)
    desk.ask(made, other)
    guarded = desk.writer._driver = Guarded(desk.writer._driver, locked.pk)

    async def wait_for_the_lock():
        submit = desk.writer.submit
        waiting = [asyncio.ensure_future(submit(op)) for op in (extend(made, 20), extend(made, 30), settle(made, 7))]
        for amount in range(11, 31):
            assert await submit(extend(other, amount)) == Held(amount, 100 - amount)
        assert desk.writer.oldest_age == 0
        await until(lambda: sum(op.wallet == locked.pk for flush in guarded.flushed for op in flush) > 5)
        assert not any(one.done() for one in waiting)
        guarded.taken.clear()
        return await asyncio.gather(*waiting)

    assert desk.runner.run(wait_for_the_lock()) == [Held(20, 80), Held(30, 70), Settled(7, 93, 0)]
    tried = [type(op).__name__ for flush in guarded.flushed for op in flush if op.wallet == locked.pk]
    assert tried == ["Extend"] * (len(tried) - 1) + ["Settle"]


def test_a_wallet_that_others_keep_locking_gets_its_turn(desk):
    locked, free = make_wallet(credit=100), make_wallet(credit=100)
    guarded = desk.writer._driver = Guarded(desk.writer._driver, locked.pk)
    answers = desk.ask(reserve(locked, 10), reserve(locked, 20), reserve(free, 5))
    assert answers == [Held(10, 90), Held(20, 70), Held(5, 95)]
    assert [{op.wallet for op in turn} for turn in guarded.turns] == [{locked.pk}]


def test_a_settle_that_nobody_waits_for_any_more_is_applied(desk, faulty):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 60)
    desk.ask_one(made)

    async def leave():
        faulty.gate = asyncio.Event()
        with pytest.raises(TimeoutError):
            await desk.writer.submit(settle(made, 7), 0.01)
        faulty.gate.set()
        await until(desk.writer._task.done)

    desk.runner.run(leave())
    assert UsageRecord.objects.get(request=made.request).charge == 7


def test_each_caller_s_deadline_is_its_own(desk, faulty):
    """They share a timer: one that is set later may end sooner, and one that has its answer ends nothing."""
    wallet = make_wallet(credit=100)
    made = [reserve(wallet, 10) for _ in range(3)]
    desk.ask(*made)

    async def wait():
        faulty.gate = asyncio.Event()
        late, soon, never = (
            asyncio.ensure_future(desk.writer.submit(settle(one, 1), seconds))
            for one, seconds in zip(made, (2000, 1000, 10_000), strict=True)
        )
        await asyncio.sleep(0)  # their timer is set
        put_forward(asyncio.get_running_loop(), 1500)
        await asyncio.wait({soon})
        assert not late.done()
        put_forward(asyncio.get_running_loop(), 1000)
        await asyncio.wait({late})
        assert all(isinstance(one.exception(), TimeoutError) for one in (late, soon))
        faulty.gate.set()
        assert (await never).charge == 1

    desk.runner.run(wait())
