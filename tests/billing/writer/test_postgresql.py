"""What only a server can do to the writer: cut it off, lock it out, not answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading

import psycopg
import pytest
from django.db import connection
from psycopg.pq import Trace

from billing.models import UsageRecord
from billing.writer.operations import Held, Settled
from billing.writer.postgresql import driver
from billing.writer.postgresql.statements import STATEMENTS
from tests.billing.writer.world import extend, make_wallet, release, reserve, settle

pytestmark = [
    pytest.mark.money,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def _postgresql_only(db):
    if connection.vendor != "postgresql":
        pytest.skip("the driver of PostgreSQL")


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


def test_a_server_that_does_not_answer_is_left_and_asked_again(desk, other, monkeypatch, caplog):
    """Somebody holds the wallet for longer than an answer may take: the connection is cut and the flush sent again."""
    monkeypatch.setattr(driver, "ANSWER_SECONDS", 0.05)
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 10)
    desk.ask_one(made)
    other.execute("SELECT 1 FROM billing_wallet WHERE id = %s FOR UPDATE", [wallet.pk])
    letting_go = threading.Timer(0.3, other.rollback)
    letting_go.start()
    with caplog.at_level(logging.WARNING, "billing.writer"):
        assert desk.ask_one(settle(made, 7)) == Settled(7, 93, 0)
    letting_go.join()
    assert "no answer in 0.05 s" in caplog.text


def test_one_locked_wallet_does_not_stop_the_others(desk, other):
    locked, free = make_wallet(credit=100), make_wallet(credit=100)
    held = [reserve(locked, 10), *(reserve(free, 1) for _ in range(7))]
    desk.ask(*held)
    other.execute("SELECT 1 FROM billing_wallet WHERE id = %s FOR UPDATE", [locked.pk])

    async def close_all():
        closings = [asyncio.ensure_future(desk.writer.submit(release(one))) for one in held]
        await asyncio.wait(closings[1:])
        assert not closings[0].done()
        other.rollback()
        return await closings[0]

    assert desk.runner.run(close_all()) == Settled(0, 100, 0)


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
    return "'{}'" if kind.endswith("[]") else {"timestamp": "'epoch'", "smallint": "'0'"}[kind.split()[0]]
