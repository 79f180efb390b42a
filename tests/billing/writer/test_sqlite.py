"""What only a file can do to the writer: be locked by another process."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading

import pytest
from django.db import connection

from billing.models import UsageRecord
from billing.writer import queue
from billing.writer.operations import Held, Settled
from billing.writer.sqlite import driver
from billing.writer.sqlite.statements import STATEMENTS
from tests.billing.writer.world import make_wallet, reserve, settle

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_locked_file_is_waited_for(desk, monkeypatch):
    monkeypatch.setattr(driver, "LOCK_SECONDS", 0.01)
    wallet = make_wallet(credit=100)
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    letting_go = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    letting_go.start()
    assert desk.ask_one(reserve(wallet, 1)) == Held(1, 99)
    letting_go.join()
    other.close()


def test_the_writers_own_connection_cannot_replace_a_record(desk):
    wallet = make_wallet(credit=100)
    made = reserve(wallet, 5)
    desk.ask(made)
    assert desk.ask_one(settle(made, 5)) == Settled(5, 95, 0)
    table = UsageRecord._meta.db_table
    statement = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"
    own = desk.writer._driver
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        own._thread.submit(lambda: own._connect().execute(statement)).result()


def test_the_lock_is_left_free_only_while_more_is_waiting(desk, monkeypatch):
    wallet = make_wallet(credit=100_000)
    rests = []
    real = asyncio.sleep

    async def sleep(seconds):
        rests.append(seconds)
        await real(0)

    monkeypatch.setattr(queue.asyncio, "sleep", sleep)
    desk.ask_one(reserve(wallet, 1))
    assert rests == []
    desk.ask(*(reserve(wallet, 1) for _ in range(queue.MAX_FLUSH + 1)))
    assert rests == [0.002]


def test_statements_take_sequences_by_position_alone():
    """Numbered placeholders with sequences are deprecated in Python 3.12 and refused from 3.14 on."""
    assert not [name for name, sql in STATEMENTS.items() if re.search(r"[?:@$]\w", sql)]
