"""What only a server can do to the writer: cut it off, lock it out, not answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging

import psycopg
import pytest
from django.db import connection
from django.db.models import F
from psycopg.pq import Trace

from billing.models import Hold, UsageRecord
from billing.services.holds import take_expired
from billing.writer import open_writer
from billing.writer.entry import RESEND_SECONDS, ConflictError
from billing.writer.operations import LEASE_SECONDS, Held, Renewed, Settled
from billing.writer.postgresql import driver, pipeline
from billing.writer.postgresql.statements import STATEMENTS
from tests.billing.writer.world import extend, make_wallet, patient, release, renew, reserve, settle, until

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def other():
    """A connection of somebody else."""
    known = connection.settings_dict
    fields = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
    with psycopg.connect(**{name: known[key] for name, key in fields.items()}) as made:
        yield made


def backend(desk):
    return desk.writer._driver._connection.info.backend_pid


def test_a_connection_that_was_cut_is_made_again(desk, other, caplog):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    before = backend(desk)
    other.execute("SELECT pg_terminate_backend(%s, 5000)", [before])
    with caplog.at_level(logging.WARNING, "billing.writer"):
        assert desk.ask_one(settle(made, 7)) == Settled(7, 93, 0)
    assert "connection went away" in caplog.text
    assert backend(desk) != before


def test_a_server_that_takes_no_writes_any_more_is_left_for_the_one_that_does(desk, caplog):
    """After a failover the old connection may stand, to what is a replica now: each settle failed until a restart."""
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    before = backend(desk)
    desk.runner.run(desk.writer._driver._connection.execute("SET default_transaction_read_only = on"))
    with caplog.at_level(logging.WARNING, "billing.writer"):
        assert desk.ask(settle(made, 7), reserve(wallet, 80)) == [Settled(7, 93, 0), Held(80, 13)]
    assert "takes no writes any more" in caplog.text
    assert backend(desk) != before


def test_the_loop_begins_once_to_look_at_the_connection(desk, monkeypatch):
    wallet = make_wallet(credit=100)
    desk.ask_one(reserve(wallet, 10))
    begun = []
    monkeypatch.setattr(pipeline.os, "dup", begun.append)
    made = reserve(wallet, 20)
    assert (desk.ask_one(made), desk.ask_one(settle(made, 7))) == (Held(20, 70), Settled(7, 93, 10))
    assert begun == []


def test_a_connection_that_the_server_cuts_while_nobody_waits_is_looked_at_no_longer(desk, other):
    wallet = make_wallet(credit=100)
    desk.ask_one(reserve(wallet, 10))
    watch = desk.writer._driver._pipeline._watch
    other.execute("SELECT pg_terminate_backend(%s, 5000)", [backend(desk)])
    desk.runner.run(until(lambda: watch._looked_at is None))


def test_a_commit_whose_answer_was_cut_off_is_recognised(desk, other, monkeypatch):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    real = desk.writer._driver._attempt

    async def cut_after_commit(*arguments, **options):
        monkeypatch.undo()
        await real(*arguments, **options)
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [backend(desk)])
        await arguments[0].execute("SELECT 1")

    monkeypatch.setattr(desk.writer._driver, "_attempt", cut_after_commit)
    assert desk.ask(settle(made, 7), reserve(wallet, 80)) == [Settled(7, 93, 80), Held(80, 13)]
    assert UsageRecord.objects.count() == 1


def test_an_attempt_that_is_given_up_has_ended_before_the_next_connection(desk, monkeypatch):
    """Else it would still watch a descriptor whose number the next connection is given."""
    wallet = make_wallet(credit=100)
    desk.ask_one(reserve(wallet, 10))
    before = desk.writer._driver._connection
    monkeypatch.setattr(desk.writer._driver, "answer_timeout", 0.05)
    ended = []

    async def deaf(*_arguments, **_options):
        monkeypatch.undo()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(desk.writer._driver._connection)

    monkeypatch.setattr(desk.writer._driver, "_attempt", deaf)
    assert desk.ask_one(reserve(wallet, 20)) == Held(20, 70)
    assert ended == [before], "before it was connected anew"
    assert desk.writer._driver._connection is not before


@pytest.fixture
def slow(other):
    """Make each insert into holds and usage records take `slow(seconds)`."""
    tables = ("billing_hold", "billing_usagerecord")

    def slow(seconds):
        other.execute(
            f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$"
        )
        for table in tables:
            other.execute(f"CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION slow()")
        other.commit()

    yield slow
    other.rollback()
    other.execute("SET lock_timeout = '20s'")
    other.execute("DROP FUNCTION slow() CASCADE")
    other.commit()


def test_a_slow_database_is_slow_and_not_absent(desk, slow, monkeypatch, caplog):
    """Writes that take longer than an answer may: the limit grows with each loss, and stays where answers come."""
    monkeypatch.setattr(driver, "ANSWER_SECONDS", 0.05)
    desk.writer._driver.answer_timeout = 0.05
    wallet = make_wallet(credit=100)
    slow(0.15)
    for _ in range(4):
        made = reserve(wallet, 10)
        assert isinstance(desk.ask_one(made), Held)
        assert isinstance(desk.ask_one(settle(made, 7)), Settled)
    assert "no answer in 0.05 s" in caplog.text
    assert caplog.text.count("no answer") < 8, "fewer than were asked for: the limit stays where answers come"
    assert desk.writer._driver.answer_timeout > 0.15


def test_a_reserve_has_its_answer_while_it_may_be_sent_again_however_slow_the_database_is():
    slow = driver.PostgreSQLDriver(connection.settings_dict)
    assert slow.reserve_timeout == 2 * driver.ANSWER_SECONDS
    slow.answer_timeout = driver.MAX_ANSWER_SECONDS
    assert slow.reserve_timeout <= RESEND_SECONDS < LEASE_SECONDS


def test_one_locked_wallet_stops_no_other_tenant(other):
    """A wallet's row is somebody else's for as long as it takes to try it twenty times; all others are answered."""
    locked, *free = (make_wallet(credit=100_000) for _ in range(8))
    with asyncio.Runner() as runner:
        writer = patient(open_writer(connection.settings_dict))
        conflicts = []
        flush = writer._driver.flush

        async def watched(operations, *, waits=False):
            try:
                return await flush(operations, waits=waits)
            except ConflictError:
                conflicts.append(waits)
                raise

        writer._driver.flush = watched
        held = reserve(locked, 10)
        runner.run(writer.submit(held))
        other.execute("SELECT 1 FROM billing_wallet WHERE id = %s FOR UPDATE", [locked.pk])

        async def serve(wallet, times):
            for _ in range(times):
                made = reserve(wallet, 10)
                assert isinstance(await writer.submit(made), Held)
                assert isinstance(await writer.submit(settle(made, 7)), Settled)
            return times

        async def everybody():
            closing = [asyncio.ensure_future(writer.submit(op)) for op in (extend(held, 20), settle(held, 7))]
            answered = 0
            while not writer._locked or max((e.skips for e in writer._locked.entries), default=0) < 20:
                answered += sum(await asyncio.gather(*(serve(wallet, 3) for wallet in free)))
                assert not any(one.done() for one in closing)
            renewed = await writer.submit(renew(held))
            other.rollback()
            return answered, renewed, await asyncio.gather(*closing)

        try:
            answered, renewed, closed = runner.run(everybody())
        finally:
            runner.run(writer.close())
    assert answered >= 21
    assert False not in conflicts  # only a flush of the locked wallet's own operations waits for it
    assert renewed == Renewed(frozenset({held.request}))
    assert closed == [Held(20, 99_980), Settled(7, 99_993, 0)]


def test_a_locked_hold_is_renewed_later_and_closed_when_it_is_free(desk, other):
    wallet = make_wallet(credit=100)
    locked, free = reserve(wallet, 10), reserve(wallet, 20)
    desk.ask(locked, free)
    other.execute("SELECT 1 FROM billing_hold WHERE id = %s FOR UPDATE", [locked.request])
    found = desk.ask_one(renew(locked, free))
    assert found == Renewed(frozenset({free.request}), frozenset({locked.request}))

    async def close_both():
        closings = [asyncio.ensure_future(desk.writer.submit(settle(one, 5))) for one in (locked, free)]
        await asyncio.wait(closings[1:])
        assert not closings[0].done()
        other.rollback()
        return await asyncio.gather(*closings)

    assert desk.runner.run(close_both()) == [Settled(5, 90, 0), Settled(5, 95, 10)]


def test_limits_hold_for_every_connection_and_stricter_ones_for_the_writers(desk):
    desk.ask_one(reserve(make_wallet(credit=100), 10))
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

    async def of_the_writer():
        own = desk.writer._driver._connection
        return [(await (await own.execute(f"SHOW {name}", prepare=False)).fetchone())[0] for name in names]

    assert desk.runner.run(of_the_writer()) == ["30s", "100ms", "1s"]
    connection.close()
    with connection.cursor() as cursor:
        found = [cursor.execute(f"SHOW {name}") and cursor.fetchone()[0] for name in names]
    assert found == ["30s", "10s", "15s"]


def test_one_locked_wallet_keeps_no_other_tenant_s_holds_open(desk, other):
    """Each turn of the sweep failed at it, as long as it was locked."""
    wallets = sorted([make_wallet(credit=100), make_wallet(credit=100)], key=lambda wallet: wallet.pk)
    held = [reserve(wallet, 10) for wallet in wallets]
    desk.ask(*held)
    Hold.objects.update(lease_until=F("reserved_at"))
    other.execute("SELECT 1 FROM billing_wallet WHERE id = %s FOR UPDATE", [wallets[0].pk])
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
        try:
            assert [orphan.request for orphan in take_expired()] == [held[1].request]
        finally:
            cursor.execute("RESET lock_timeout")
    other.rollback()
    assert [orphan.request for orphan in take_expired()] == [one.request for one in held]


def test_statements_are_prepared_at_connect_and_never_scan_a_table(desk):
    with connection.cursor() as cursor:  # known to be empty: the planner's best reason for a scan
        cursor.execute("VACUUM ANALYZE billing_wallet, billing_hold, billing_creditgrant, billing_usagerecord")
    desk.ask_one(release(reserve(make_wallet(), 1)))

    async def plans():
        own = desk.writer._driver._connection
        cursor = await own.execute("SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements")
        found = {}
        for name, statement, kinds in await cursor.fetchall():
            values = ", ".join(map(sample, kinds))
            explained = await own.execute(f"EXPLAIN EXECUTE {name}({values})" if values else "SELECT ''", prepare=False)
            found[statement] = "\n".join(line for (line,) in await explained.fetchall())
        return found

    found = desk.runner.run(plans())
    ours = [sql for name, sql in STATEMENTS.items() if name not in ("begin", "commit", "rollback")]
    assert len([sql for sql in found if "billing_" in sql]) == len(ours)
    assert not [plan for plan in found.values() if "Seq Scan on billing_" in plan]


def test_statements_are_planned_once(desk):
    """Left to itself the server plans statements over small sets anew each time, for a third of a flush's time."""
    wallet = make_wallet(credit=1000)
    for _ in range(8):
        made = reserve(wallet, 10)
        desk.ask_one(made)
        desk.ask_one(settle(made, 7))

    async def replanned():
        own = desk.writer._driver._connection
        cursor = await own.execute("SELECT name FROM pg_prepared_statements WHERE custom_plans > 0", prepare=False)
        return await cursor.fetchall()

    assert not desk.runner.run(replanned())


def test_a_flush_takes_two_round_trips_and_few_statements(desk, tmp_path):
    """Counted on the wire: what a flush of reserves, extensions and settles costs, whatever its size."""
    wallets = [make_wallet(credit=1000) for _ in range(3)]
    running = [reserve(wallet, 10) for wallet in wallets for _ in range(4)]
    desk.ask(*running)
    closing = [settle(made, 7) for made in running[::2]]
    growing = [extend(made, 20) for made in running[1::2]]
    pair, everything = tmp_path / "pair", tmp_path / "everything"
    with traced(desk, pair):
        answers = desk.ask(reserve(wallets[0], 10), closing.pop())
    assert [type(answer) for answer in answers] == [Held, Settled]
    with traced(desk, everything):
        answers = desk.ask(*(reserve(wallet, 10) for wallet in wallets), *growing, *closing)
    assert {type(answer) for answer in answers} == {Held, Settled}
    assert (round_trips(pair), statements(pair)) == (2, 13)
    assert (round_trips(everything), statements(everything)) == (2, 14)


@contextlib.contextmanager
def traced(desk, path):
    """Write down the protocol's messages of the writer's connection."""
    wire = desk.writer._driver._connection.pgconn
    with path.open("w") as file:
        wire.trace(file.fileno())
        wire.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield
        finally:
            wire.untrace()


def messages(path):
    """Yield who sent each message (F is the writer) and its kind."""
    for line in path.read_text().splitlines():
        sender, _, kind, *_ = line.split("\t")
        yield sender, kind


def statements(path):
    return sum(message == ("F", "Execute") for message in messages(path))


def round_trips(path):
    """How often the writer spoke and then waited."""
    speakers = [sender for sender, _ in messages(path)]
    return sum(before == "F" and after == "B" for before, after in itertools.pairwise(speakers))


def sample(kind):
    return (
        "'{}'" if kind.endswith("[]") else {"timestamp": "'epoch'", "smallint": "'0'", "bigint": "1"}[kind.split()[0]]
    )


@pytest.mark.parametrize("statement", ["insert_usage", "commit"])
def test_a_session_that_the_server_ends_in_the_middle_leaves_the_outcome_unknown(desk, other, monkeypatch, statement):
    """The server says why before it hangs up (a restart, a transaction that stood still): that isn't a refusal."""
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    real, pid = driver._statement, backend(desk)

    def ended_before(query):
        if query[0] == statement:
            monkeypatch.undo()
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        return real(query)

    monkeypatch.setattr(driver, "_statement", ended_before)
    assert desk.ask(settle(made, 7), reserve(wallet, 80)) == [Settled(7, 93, 0), Held(80, 13)]
    assert UsageRecord.objects.count() == 1
