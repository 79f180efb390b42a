"""A month goes into files and out of the tables, and all that can be asked about it is answered as before."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from billing import triggers
from billing.models import (
    ArchivedMonth,
    CheckedSum,
    CreditGrant,
    LedgerTransfer,
    MissedPromise,
    OutboxEvent,
    Plan,
    UsageRecord,
    Wallet,
)
from billing.rating import CLASSES as ALL
from billing.seals import archived
from billing.seals.leaves import Books
from billing.seals.proofs import proof_of
from billing.selectors.ledger import ledger_of
from billing.selectors.usage import record_of
from billing.services import archive, credits, plans, reratings, rollups
from billing.services.errors import RerateError
from billing.services.reconciliation import reconcile_if_due
from tests.billing.statements.conftest import CLASSES

pytestmark = [pytest.mark.django_db]

OCTOBER, NOVEMBER = date(2026, 10, 1), date(2026, 11, 1)


@pytest.fixture
def books(busy, settings, tmp_path):
    """Two months that are over and sealed, and a day of the third; the books were found right."""
    settings.SLUICE_ARCHIVE = str(tmp_path / "archive")
    while rollups.consume_usage():
        pass
    busy.at("12-02 01:31")
    busy.seal()
    assert found() == []
    return busy


def found(*, whole=False, all_seals=False):
    run = reconcile_if_due(timedelta(0), whole=whole, all_seals=all_seals)
    return [(one["check"], one["detail"]) for one in run.findings]


def gone(*months):
    for month in months:
        archive.drop(archive.write(month))


def kept():
    return {
        "wallets": list(Wallet.objects.values_list("posted", "held")),
        "grants": sorted(CreditGrant.objects.values_list("remaining", flat=True)),
    }


def told(shop, requests):
    return [msgspec.to_builtins(proof_of(record_of(request, shop.tenant))) for request in requests]


def columns(record):
    return {one.attname: getattr(record, one.attname) for one in UsageRecord._meta.concrete_fields}


@pytest.mark.contract
def test_statements_proofs_and_balances_of_a_dropped_month_stay(books, verify):
    before = {month: books.statement(month) for month in ("2026-10", "2026-11", "2026-12")}
    october = set(
        UsageRecord.objects.filter(settled_at__lt=datetime(2026, 11, 1, tzinfo=UTC)).values_list("request", flat=True)
    )
    november = set(
        UsageRecord.objects.filter(day__gte=NOVEMBER, day__lt=date(2026, 12, 1)).values_list("request", flat=True)
    )
    requests = sorted(october | november)
    proofs, records = told(books, requests), [columns(record_of(one, books.tenant)) for one in requests]
    sums, rows = kept(), UsageRecord.objects.count()
    gone(OCTOBER)
    assert UsageRecord.objects.count() == rows, "its request was refunded in November"
    assert {month: books.statement(month) for month in before} == before
    gone(NOVEMBER)
    assert UsageRecord.objects.count() == 1
    assert not LedgerTransfer.objects.filter(request__in=requests).exists()
    assert LedgerTransfer.objects.filter(request=None).count() == 2, "what people gave"
    assert {month: books.statement(month) for month in before} == before
    assert told(books, requests) == proofs
    assert [columns(record_of(one, books.tenant)) for one in requests] == records
    assert verify(before["2026-10"], books.statement("2026-11"))[0] == 0
    assert kept() == sums
    assert found() == found(whole=True) == found(all_seals=True) == []
    books.serve()
    books.at("12-02 02:00")
    assert found() == found(whole=True) == []
    page = ledger_of(books.wallet.pk, limit=50)
    assert [line.transfer.booked_at.month for line in page.lines] == [12] * len(page.lines)
    assert page.next is None


@pytest.mark.contract
def test_the_tables_let_rows_go_in_a_drop_alone(books):
    month = archive.write(OCTOBER)
    for rows in (UsageRecord.objects.all(), LedgerTransfer.objects.all(), ArchivedMonth.objects.all()):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            rows._raw_delete(rows.db)
    with transaction.atomic():
        ArchivedMonth.objects.filter(pk=month.pk).update(may_drop=True)
        later = UsageRecord.objects.filter(settled_at__gte=month.ends_at)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            later._raw_delete(later.db)
        ArchivedMonth.objects.filter(pk=month.pk).update(may_drop=False)
    assert triggers.missing(connection) == []


class KilledError(BaseException):
    pass


@pytest.mark.money
def test_a_drop_that_was_killed_goes_on_and_nothing_is_wrong_between(books, monkeypatch):
    monkeypatch.setattr(archive, "REQUESTS", 1)
    before = books.statement("2026-11")
    gone(OCTOBER)
    rows = UsageRecord.objects.count()

    def killed(text):
        raise KilledError

    for times in (1, 2):
        with pytest.raises(KilledError):
            archive.drop(archive.write(NOVEMBER), killed)
        assert UsageRecord.objects.count() < rows - times + 1
        assert books.statement("2026-11") == before
        assert found(whole=True) == []
    gone(NOVEMBER)
    assert UsageRecord.objects.count() == 1
    assert books.statement("2026-11") == before
    assert found() == found(whole=True) == []
    assert archive.drop(ArchivedMonth.objects.get(month=NOVEMBER)) == 0


@pytest.mark.sweep
@pytest.mark.money
def test_files_whose_writing_was_killed_are_written_anew(books):
    def killed(text):
        raise KilledError

    with pytest.raises(KilledError):
        archive.write(OCTOBER, killed)
    assert not ArchivedMonth.objects.exists()
    assert archived.edge() is None
    made = archive.write(OCTOBER)
    assert list(archived.faults([made], missing=True)) == []
    assert archive.write(OCTOBER) == made


def test_a_file_that_is_missing_or_another_is_named(books):
    gone(OCTOBER, NOVEMBER)
    path = archived.path_of(NOVEMBER, books.tenant)
    [request] = {row["request"] for row in archived.lines_of(path) if row["type"] == "record" and row["waived"]}
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(archived.ArchiveMissingError, match=f"{path} is missing or can't be read"):
        record_of(UUID(request), books.tenant)
    with pytest.raises(archived.ArchiveMissingError):
        books.statement("2026-11")
    assert found(whole=True) == [], "it may be elsewhere"
    assert {"is missing" in text for _, text in found(all_seals=True)} == {True}
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert found(whole=True) == [("archive", f"{path} is not what was written: its SHA-256 is another")]
    path.write_bytes(whole)
    assert found(all_seals=True) == []


def test_charges_of_an_archived_month_are_final(books):
    [request] = UsageRecord.objects.filter(waived=True).values_list("request", flat=True)
    gone(OCTOBER, NOVEMBER)
    with pytest.raises(ValueError, match="it is of 2026-11, which is archived: its charge is final"):
        credits.refund_request(request=request, key="late", actor="sam@example.com", reason="late")
    terms = reratings.Terms(since=datetime(2026, 11, 30, tzinfo=UTC), version=books.version)
    with pytest.raises(RerateError, match="what was before 2026-12-01 is archived"):
        reratings.ask(terms)
    reratings.ask(reratings.Terms(since=datetime(2026, 12, 1, tzinfo=UTC), version=books.version))


@pytest.mark.sweep
@pytest.mark.money
def test_what_cannot_go_says_why(books):
    with pytest.raises(CommandError, match="month: 2026-12 isn't over"):
        call_command("archive", "2026-12")
    november = archive.write(NOVEMBER)
    with pytest.raises(archive.ArchiveError, match="months are dropped in turn, and 2026-10 comes before 2026-11"):
        archive.drop(november)
    path = archived.path_of(NOVEMBER, books.tenant)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(CommandError, match="is not what was written"):
        call_command("archive", "2026-11", "--drop")
    Wallet.objects.filter(pk=books.wallet.pk).update(sealed_until=datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(archive.ArchiveError, match="aren't sealed yet"):
        archive.write(OCTOBER)
    CheckedSum.objects.update(amount=F("amount") + 1)
    assert found() != []


@pytest.mark.sweep
@pytest.mark.money
def test_rows_that_are_not_those_that_were_sealed_do_not_go(books):
    with triggers.suspended(connection):
        UsageRecord.objects.filter(waived=True).update(finish="stop", multiplier_bp=1)
    with pytest.raises(archive.ArchiveError, match="its rows are not those that were sealed"):
        archive.write(NOVEMBER)
    assert not ArchivedMonth.objects.exists()


def test_a_request_that_was_corrected_after_its_month_is_corrected_and_checked_further(books):
    [kept_one] = UsageRecord.objects.filter(settled_at__lt=datetime(2026, 11, 1, tzinfo=UTC), revision=0)
    gone(OCTOBER)
    books.at("12-02 02:00")
    books.rerate(kept_one, CLASSES)
    while rollups.consume_usage():
        pass
    assert found() == found(whole=True) == []


@pytest.mark.sweep
@pytest.mark.money
def test_usage_that_is_not_summed_yet_keeps_its_month(books):
    month = archive.write(OCTOBER)
    event = OutboxEvent.objects.create(topic="usage", payload={"records": []})
    OutboxEvent.objects.filter(pk=event.pk).update(created_at=datetime(2026, 10, 31, tzinfo=UTC))
    with pytest.raises(archive.ArchiveError, match="isn't in the sums yet"):
        archive.drop(month)
    event.delete()
    archive.drop(month)


def test_a_month_with_undecided_misses_of_promises_stays(books):
    one = UsageRecord.objects.filter(settled_at__month=10).first()
    plans.ensure_default_plans()
    of = plans.publish_version(
        Plan.objects.create(slug="promising", name="P"),
        **{name: getattr(plans.latest_version("free"), name) for name in plans.TERMS},
    )
    MissedPromise.objects.create(
        request=one.request, wallet_id=one.wallet, tenant=one.tenant, version=of, model=one.model, day=one.day
    )
    with pytest.raises(archive.ArchiveError, match="promises missed in it aren't credited yet"):
        gone(OCTOBER)


def test_files_have_all_that_records_have():
    leaf = {"id", "request", "revision", "tenant", "project", "api_key", "wallet", "model", "end_user", "charge"}
    leaf |= {"refunded", "formula", "multiplier_bp", "exact", "waived", "settled_at"} | {f"{one}_tokens" for one in ALL}
    assert {field.name for field in UsageRecord._meta.concrete_fields} == leaf | set(archived.OTHERS)


def test_who_reads_rows_while_they_go_is_told_and_reads_no_less(books):
    reading = Books(books.tenant).leaves(datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
    next(reading)
    gone(OCTOBER)
    with pytest.raises(archived.ArchivedMeanwhileError):
        list(reading)
