from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from base.ids import uuid7
from billing.selectors.ledger import LedgerCursor, ledger_of
from billing.services import credits

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def test_ledger_runs_backwards_from_the_posted_balance(wallet, give):
    for amount in (100, 20, 3):
        give(amount)
    credits.adjust(wallet_id=wallet.pk, amount=-50, key="a", actor="ada", reason="r")
    page = ledger_of(wallet.pk, limit=3)
    assert [(line.amount, line.balance) for line in page.lines] == [(-50, 73), (3, 123), (20, 120)]
    rest = ledger_of(wallet.pk, limit=3, before=page.next)
    assert [(line.amount, line.balance) for line in rest.lines] == [(100, 100)]
    assert rest.next is None


@pytest.mark.postgresql
def test_ledger_never_reads_the_whole_table(wallet, give):
    """With an OR of its two sides PostgreSQL read all of it: 2.2 s at a million transfers."""
    give(100)
    with CaptureQueriesContext(connection) as seen:
        page = ledger_of(wallet.pk, limit=1)
        ledger_of(wallet.pk, limit=1, before=LedgerCursor(page.lines[0].transfer.pk, 0))
    pages = [query["sql"] for query in seen if "UNION ALL" in query["sql"]]
    assert len(pages) == 2
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")  # a plan that can't do without still has it
        for sql in pages:
            cursor.execute("EXPLAIN " + sql)
            assert not [line for (line,) in cursor.fetchall() if "Seq Scan on billing_ledgertransfer" in line]


def test_ledger_takes_two_queries_whatever_its_length(wallet, give, django_assert_num_queries):
    for amount in range(1, 6):
        give(amount)
    for limit in (1, 5):
        with django_assert_num_queries(2):
            assert len(ledger_of(wallet.pk, limit=limit).lines) == limit


def test_ledger_of_nothing_is_empty(wallet):
    assert ledger_of(wallet.pk).lines == []
    assert ledger_of(uuid7()).lines == []
