"""Statements against the ledger: months by time zone, numbers without gaps, sums, and every form."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import IntegrityError, connection
from django.db.models import Sum
from django.db.models.signals import pre_save
from django.test.utils import CaptureQueriesContext

from base.units import MICRO
from billing.models import LedgerTransfer, Plan, PlanVersion, Statement, Subscription, UsageRecord
from billing.seals import leaves
from billing.statements import jsonl, months, tables
from control.screens import statements as screens
from tenancy.models import Tenant
from tests.billing.statements.conftest import CLASSES

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def rows_of(tenant, month, form):
    text = b"".join(screens.pieces(tenant, month, form)).decode()
    return list(csv.DictReader(io.StringIO(text)))


def subscribe(tenant, zone):
    plan = Plan.objects.create(slug="zoned", name="Zoned")
    limits = {"request_limit": 1, "request_burst": 1, "credit_limit": 1, "credit_burst": 1, "concurrency": 1}
    version = PlanVersion.objects.create(plan=plan, number=1, **limits)
    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    Subscription.objects.create(tenant_id=tenant, version=version, anchor=anchor, time_zone=zone)


def test_a_month_that_is_over_has_a_statement_that_is_right(busy, verify):
    found = Statement.objects.get(tenant=busy.tenant, number=2)
    text = busy.statement("2026-11")
    code, said = verify(text)
    assert code == 0, said
    assert "statement 2 of 2026-11 is right: 11 records" in said
    assert lines_of(text)[-1]["closing"] == found.closing
    assert verify(busy.statement("2026-10"), text, busy.statement("2026-12"))[0] == 0


def test_the_sums_are_those_of_the_ledger_and_follow_on_each_other(busy):
    october, november = Statement.objects.order_by("month")
    assert (october.number, november.number) == (1, 2)
    assert (october.month, november.month) == (date(2026, 10, 1), date(2026, 11, 1))
    assert (october.opening, october.closing) == (0, november.opening)
    sums = november.sums
    moved = {(one["code"], one["account"]): one["amount"] for one in sums["movements"]}
    assert november.closing == november.opening + sum(moved.values())
    in_november = UsageRecord.objects.filter(tenant=busy.tenant, settled_at__gte=november.begins_at)
    first = in_november.filter(settled_at__lt=november.ends_at, revision=0)
    used = {(one["model"], one["class"]): one for one in sums["usage"]}
    for name in CLASSES:
        assert used["m", name]["tokens"] == first.aggregate(sum=Sum(f"{name}_tokens"))["sum"]
    charged = sum(one["charge"] for one in sums["usage"])
    assert months.month_of(busy.tenant, date(2026, 12, 1)).opening == november.closing
    parts = LedgerTransfer.objects.filter(booked_at__gte=november.begins_at, booked_at__lt=november.ends_at)
    usage = parts.filter(credit__kind="usage").aggregate(sum=Sum("amount"))["sum"]
    back = parts.filter(debit__kind="usage").aggregate(sum=Sum("amount"))["sum"]
    assert charged == usage - back
    assert sums["counts"] == {"requests": 5, "corrections": 6, "waived": 1, "estimated": 2}


def test_corrections_after_their_grant_ended_bring_their_breakage_along(busy):
    gone = [
        line["code"]
        for line in lines_of(busy.statement("2026-11"))
        if line["type"] == "transfer" and (line["debit"], line["credit"]) == ("usage", "breakage")
    ]
    assert gone == ["true_up", "request_refund"]


def test_what_a_missed_promise_gave_back_is_sealed_and_verified(shop, verify):
    shop.at("11-03 10:00")
    shop.give(1_000, expires_at=datetime(2026, 11, 4, tzinfo=UTC), priority=0)
    shop.give(10**6)
    miss = shop.serve_late()
    shop.at("11-05 10:00")  # a grant that paid has ended
    shop.credit()
    shop.at("12-01 00:30")
    shop.seal()
    text = shop.statement("2026-11")
    code, said = verify(text)
    assert code == 0, said
    assert f"request {miss.request}" not in said
    moved = [line for line in lines_of(text) if line["type"] == "transfer" and line["code"] == "promise"]
    [record] = [line for line in lines_of(text) if line["type"] == "record" and line["revision"] == 1]
    assert {(one["debit"], one["reason"]) for one in moved} == {
        ("usage", "Promise missed: first token after 812 ms, promised within 500 ms")
    }
    assert sum(one["amount"] for one in moved) == record["refunded"] == -(-(record["charge"] + record["refunded"]) // 4)
    forged = text.replace('"code":"promise"', '"code":"grant"', 1)
    assert forged != text
    assert verify(forged)[0] == 1


def test_months_are_those_of_the_tenants_time_zone(shop, verify):
    subscribe(shop.tenant, "America/New_York")
    shop.at("10-31 20:00")
    shop.give(10**6)
    shop.at("11-01 03:59")  # 23:59 of October there
    late = shop.serve()
    shop.at("11-01 04:01")
    early = shop.serve()
    shop.at("12-01 04:59")
    shop.serve()
    shop.at("12-01 05:00")
    shop.serve()
    shop.at("12-02 00:01")
    shop.seal()
    october, november = Statement.objects.order_by("number")
    assert october.ends_at == november.begins_at == datetime(2026, 11, 1, 4, tzinfo=UTC)
    assert november.ends_at == datetime(2026, 12, 1, 5, tzinfo=UTC)  # clocks were set back meanwhile
    texts = [shop.statement(name) for name in ("2026-10", "2026-11", "2026-12")]
    requests = [[line["request"] for line in lines_of(text) if line["type"] == "record"] for text in texts]
    assert requests[0] == [str(late.request)]
    assert requests[1][0] == str(early.request)
    assert [len(one) for one in requests] == [1, 2, 1]
    assert [sum(line["type"] == "leaf" for line in lines_of(text)) for text in texts] == [2, 4, 2]
    code, said = verify(*texts)
    assert code == 0, said


def test_a_draft_says_what_is_not_sealed_yet(busy, verify):
    busy.serve()
    code, said = verify(busy.statement("2026-12"))
    assert (code, "its last 2 rows are not sealed yet" in said) == (0, True)
    assert lines_of(busy.statement("2026-12"))[0]["number"] is None
    for name in ("2026-09", "2027-01", "2026-13"):
        with pytest.raises(ValueError, match="month: "):
            busy.statement(name)


def test_numbers_have_no_gaps_over_all_tenants(busy):
    from billing.services import wallets
    from tests.billing.conftest import make_tenant
    from tests.billing.statements.conftest import Shop

    other = object.__new__(Shop)
    other.__dict__ |= busy.__dict__
    other.wallet = wallets.open_wallet(tenant_id=make_tenant().pk)
    other.tenant = other.wallet.tenant_id
    other.at("12-05 10:00")
    other.give(100)
    busy.clock.set(datetime(2027, 1, 2, tzinfo=UTC))
    taken = []

    def take(**_):
        if not taken:  # as if another process had taken the number meanwhile
            taken.append(True)
            raise IntegrityError

    pre_save.connect(take, sender=Statement)
    for shop in (busy, other):
        months.turn(shop.wallet.pk)
    pre_save.disconnect(take, sender=Statement)
    assert taken
    numbers = list(Statement.objects.order_by("number").values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))


def test_files_have_every_row_and_sum(busy):
    tenant = Tenant.objects.get(pk=busy.tenant)
    month = months.month_of(busy.tenant, date(2026, 11, 1))
    statement = month.statement
    requests, ledger = rows_of(tenant, month, "csv"), rows_of(tenant, month, "ledger")
    records = [line for line in lines_of(busy.statement("2026-11")) if line["type"] == "record"]
    assert [row["request"] for row in requests] == [line["request"] for line in records]
    assert Decimal(ledger[-1]["balance"]) * MICRO == statement.closing
    assert Decimal(ledger[0]["balance"]) * MICRO == statement.opening
    focus = rows_of(tenant, month, "focus")
    assert list(focus[0]) == list(tables.FOCUS)
    cost = sum(Decimal(row["BilledCost"]) for row in focus) * MICRO
    assert cost == sum(line["charge"] for line in statement.sums["usage"])
    assert {row["ChargeClass"] for row in focus} == {"", "Correction"}
    for row in focus:
        if row["x_TokenClass"] not in ("request", "correction"):
            estimate = Decimal(row["ConsumedQuantity"]) * Decimal(row["ContractedUnitPrice"])
            assert abs(estimate - Decimal(row["BilledCost"])) <= Decimal(row["x_Requests"]) / MICRO


def test_formulas_in_words_are_none_in_a_spreadsheet(shop):
    shop.at("11-03 10:00")
    shop.give(100, reason="=1+1", actor="@me")
    [_, row] = rows_of(Tenant.objects.get(pk=shop.tenant), months.month_of(shop.tenant, date(2026, 11, 1)), "ledger")
    assert (row["reason"], row["actor"]) == ("'=1+1", "'@me")


def test_the_command_writes_each_form(busy, tmp_path, verify):
    slug = Tenant.objects.get(pk=busy.tenant).slug
    for form in screens.FORMATS:
        path = tmp_path / f"statement.{form}"
        call_command("statement", slug, "2026-11", "--format", form, "--output", str(path))
        assert path.stat().st_size > 500
    assert verify((tmp_path / "statement.jsonl").read_text())[0] == 0
    page = (tmp_path / "statement.html").read_text()
    assert "Statement 2" in page
    assert "<link" not in page
    for arguments, words in ((("nobody", "2026-11"), "there is no 'nobody'"), ((slug, "11/2026"), "2026-11")):
        with pytest.raises(CommandError, match=words):
            call_command("statement", *arguments)


def test_a_statement_is_read_in_chunks_by_indexes(shop, monkeypatch):
    """No query reads more than a chunk of rows, however many there are, and what is written is written bit by bit."""
    monkeypatch.setattr(leaves, "CHUNK", 20)
    shop.at("11-03 10:00")
    shop.give(10**9)
    for _ in range(100):
        shop.serve()
    monkeypatch.setattr(jsonl, "_WRITTEN_AT_ONCE", 30)
    with CaptureQueriesContext(connection) as asked:
        pieces = list(shop.pieces("2026-11"))
    assert max(piece.count(b"\n") for piece in pieces) == 30
    read = [
        one["sql"]
        for one in asked
        if "ORDER BY" in one["sql"] and ("usagerecord" in one["sql"] or "transfer" in one["sql"])
    ]
    assert read
    assert all("LIMIT 20" in one or "LIMIT 1" in one for one in read)
