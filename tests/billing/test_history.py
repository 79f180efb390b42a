"""What is read doesn't grow with history: rows that PostgreSQL reads while a year of them lies in the tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from base.ids import day_of, uuid7
from billing import reconcile
from billing.models import KeyTotal, LedgerAccount, LedgerTransfer, UsageRecord, UsageRollup
from billing.selectors import ledger, money, usage
from billing.selectors.balances import balance_of
from billing.services import rollups
from billing.writer.apply import apply_now
from billing.writer.operations import Reserve, Settle
from tests.billing.writer.world import make_wallet

pytestmark = [pytest.mark.sweep, pytest.mark.postgresql, pytest.mark.django_db]

ROWS = 1_500
MOST = 120
KEY = uuid7()
TABLES = ("billing_usagerecord", "billing_ledgertransfer", "billing_usagerollup", "billing_creditgrant")


@pytest.fixture
def wallet():
    """A wallet with a request each six hours of a year, and of today one."""
    wallet = make_wallet(credit=10**9)
    account = wallet.accounts.get()
    breakage, spent = (LedgerAccount.objects.get(kind=kind) for kind in ("breakage", "usage"))
    today, some = timezone.now(), uuid7()
    moments = [today - timedelta(days=400) + timedelta(hours=6.4 * number) for number in range(ROWS)]
    ids = [uuid7(int(moment.timestamp() * 1000)) for moment in moments]
    UsageRecord.objects.bulk_create(
        UsageRecord(
            id=one, request=one, day=day_of(one), tenant=wallet.tenant_id, project=some, api_key=KEY, wallet=wallet.pk,
            model="m", deployment=some, card_version=some, charge=1, held=1, reserved_at=moment, settled_at=moment,
        )
        for one, moment in zip(ids, moments, strict=True)
    )  # fmt: skip
    LedgerTransfer.objects.bulk_create(
        LedgerTransfer(debit=account, credit=spent, amount=1, code=2, request=one, booked_at=moment)
        for one, moment in zip(ids, moments, strict=True)
    )
    LedgerTransfer.objects.bulk_create(
        LedgerTransfer(debit=account, credit=breakage, amount=1, code=4, booked_at=moment) for moment in moments
    )
    UsageRollup.objects.bulk_create(
        UsageRollup(hour=moment, tenant=wallet.tenant_id, project=some, api_key=KEY, model="m", requests=1, charge=1)
        for moment in moments
    )
    while rollups.add_up_keys():
        pass
    made = Reserve(
        request=uuid7(), wallet=wallet.pk, amount=5, least=1, owner=some, deployment=some, card_version=some,
        tenant=wallet.tenant_id, project=some, api_key=KEY, model="m",
    )  # fmt: skip
    apply_now([made, Settle(made.request, wallet.pk, 5, {"input": 1})])
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {', '.join(TABLES)}")
        cursor.execute("SET LOCAL enable_seqscan = off")  # so few rows lie in so few pages that none would be used
    return wallet


def read():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
            " WHERE relname = ANY(%s)", [list(TABLES)],
        )  # fmt: skip
        return dict(cursor.fetchall())


def of_key(wallet):
    in_all, *_ = usage.charges_of_key(wallet.tenant_id, KEY)
    assert in_all == ROWS


def of_pages(wallet):
    today = datetime.now(UTC)
    assert money.expired(today - timedelta(days=7), today + timedelta(days=1)) > 0
    assert len(ledger.ledger_of(wallet.pk, limit=20).lines) == 20
    assert balance_of(wallet.tenant_id) is not None
    assert usage.charges_of([wallet.tenant_id], today.date() - timedelta(days=7), today.date())
    assert usage.used_since(wallet.tenant_id, today - timedelta(hours=5))


def of_hourly_check(wallet):
    last = LedgerTransfer.objects.order_by("-id").first()
    reach = reconcile.Reach(last.pk - 1, uuid7(int((timezone.now() - timedelta(hours=1)).timestamp() * 1000)))
    found = {one.check for one in reconcile.check(connection, reach=reach)}
    assert "charge_recomputed" in found, "of the new request, whose card there is none of"


@pytest.mark.parametrize("asked", [of_key, of_pages, of_hourly_check])
def test_what_is_read_does_not_grow_with_history(wallet, asked):
    before = read()
    asked(wallet)
    rows = {table: count - before.get(table, 0) for table, count in read().items()}
    assert {table: count for table, count in rows.items() if count > MOST * (2 if asked is of_key else 5)} == {}


def test_without_its_total_all_of_a_key_would_be_read(wallet):
    KeyTotal.objects.all().delete()
    before = read()
    of_key(wallet)
    assert read()["billing_usagerollup"] - before["billing_usagerollup"] >= ROWS
