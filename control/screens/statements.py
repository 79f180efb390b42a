"""Statements as pages and files, alike for tenants and operators."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from django.contrib.staticfiles import finders
from django.http import Http404, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.utils.safestring import mark_safe

from billing.models import Wallet
from billing.seals.archived import ArchiveMissingError, need
from billing.selectors.usage import usage_by
from billing.statements import jsonl, months, tables
from billing.statements.months import Month, NoStatementError
from control.belongings.download import sent
from control.screens.charts import Tile
from control.screens.figures import amount, cell, grouped
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import Tenant

ISSUER = "Sluice"
MOST_LISTED = 36
_ROWS_AT_ONCE = 500
_AMOUNT = re.compile(r"-?\d+(\.\d+)?")
_MOVEMENTS = {
    "grant": "Credit given",
    "charge": "Requests",
    "true_up": "Corrections of requests",
    "expiry": "Credit expired",
    "void": "Credit taken back",
    "adjustment": "Adjustments",
    "overdraft_repaid": "Overdraft repaid",
    "refund": "Refunds",
    "request_refund": "Refunds of requests",
    "rerating": "Re-rated requests",
    "rollover": "Rolled over",
    "promise": "Promises missed",
}
_ACCOUNTS = {
    "issuance_plan": "by the plan",
    "issuance_promo": "promotional",
    "issuance_goodwill": "goodwill",
    "issuance_paid": "paid",
}
FORMATS = {
    "jsonl": ("application/jsonl", "To verify (JSON lines)"),
    "csv": ("text/csv", "Requests (CSV)"),
    "ledger": ("text/csv", "Ledger (CSV)"),
    "focus": ("text/csv", "FOCUS (CSV)"),
    "html": ("text/html; charset=utf-8", "Page (HTML)"),
}
"""The files of a statement: their content type, and what they are called."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A month of a tenant as a page shows it."""

    tenant: Tenant
    month: Month
    tiles: list[Tile]
    usage: Table
    movements: Table
    notes: list[str]

    @property
    def title(self) -> str:
        """Its name: the number of a statement, or that it is a draft."""
        statement = self.month.statement
        return "Draft" if statement is None else f"Statement {statement.number}"

    @property
    def period(self) -> str:
        """Its first and last day, and the time zone that they are of."""
        last = (self.month.first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        return f"{self.month.first:%d %B %Y} to {last:%d %B %Y} ({self.month.time_zone})"


def month_named(tenant: Tenant, name: str) -> Month:
    """Return the tenant's month of that name, as 2026-11; 404 where it has no statement."""
    try:
        return months.month_of(tenant.pk, months.parsed(name))
    except (NoStatementError, ValueError):
        raise Http404 from None


def shown(tenant: Tenant, month: Month) -> Shown:
    """Return a month as a page shows it; of a draft the sums so far, which read no single row."""
    return _of_draft(tenant, month) if month.statement is None else _of_statement(tenant, month)


def _of_statement(tenant: Tenant, month: Month) -> Shown:
    statement = month.statement
    assert statement is not None
    sums, counts = statement.sums, statement.sums["counts"]
    rows = [
        Row([line["model"], line["class"].replace("_", " "), _tokens(line["tokens"]), line["charge"]])
        for line in sums["usage"]
    ]
    moved = [Row([_movement(line), line["amount"]]) for line in sums["movements"] if line["amount"]]
    notes = [
        f"{grouped(counts[name])} {words}"
        for name, words in (("waived", "of them were waived"), ("estimated", "were charged by an estimate"))
        if counts[name]
    ]
    return Shown(
        tenant,
        month,
        [
            Tile("Opening balance", amount(statement.opening, is_charge=False), "credits"),
            Tile("Requests", grouped(counts["requests"]), "; ".join(notes)),
            Tile("Used", amount(sum(line["charge"] for line in sums["usage"])), "credits"),
            Tile("Closing balance", amount(statement.closing, is_charge=False), "credits"),
        ],
        _usage_table(rows),
        _movements_table(moved),
        ["It is final: the month is over, and each of its days is sealed."],
    )


def _of_draft(tenant: Tenant, month: Month) -> Shown:
    now = timezone.now()
    used = usage_by("month", tenant.pk, month.begins_at, min(now, month.ends_at), by=("model",))
    charges: dict[str, tuple[int, int, int]] = {}
    for one in used:
        tokens = one.input_tokens + one.cache_read_tokens + one.output_tokens
        before = charges.get(one.group[0], (0, 0, 0))
        charges[one.group[0]] = before[0] + one.requests, before[1] + tokens, before[2] + one.charge
    posted = sum(Wallet.objects.filter(tenant=tenant).values_list("posted", flat=True))
    spent = sum(sums[2] for sums in charges.values())
    rows = [Row([model, "all", _tokens(sums[1]), sums[2]]) for model, sums in sorted(charges.items())]
    other = posted - month.opening + spent
    moved = [Row(["Requests", -spent]), Row(["Credit that came, expired or was corrected", other])]
    return Shown(
        tenant,
        month,
        [
            Tile("Opening balance", amount(month.opening, is_charge=False), "credits"),
            Tile("Requests", grouped(sum(sums[0] for sums in charges.values())), "so far"),
            Tile("Used", amount(spent), "credits so far"),
            Tile("Balance", amount(posted, is_charge=False), "credits now"),
        ],
        _usage_table(rows),
        _movements_table([row for row in moved if row.values[1]]),
        ["The month runs: these are the sums so far, of the last minutes perhaps without all requests."],
    )


def _month(first: date) -> str:
    return f"{first:%B %Y}"


def _tokens(count: int) -> Any:
    return grouped(count) if count else ""


def _movement(line: dict[str, Any]) -> str:
    words = _MOVEMENTS.get(line["code"], line["code"].replace("_", " ").capitalize())
    return f"{words}, {account}" if (account := _ACCOUNTS.get(line["account"])) else words


def _usage_table(rows: list[Row]) -> Table:
    columns = [Column("Model", "name"), Column("Class"), Column("Tokens", "number"), Column("Credits", "credits")]
    return Table("Used", columns, rows, "Nothing was used.", id="used")


def _movements_table(rows: list[Row]) -> Table:
    return Table("Balance", [Column("What", "name"), Column("Credits", "balance")], rows, "Nothing moved.", id="moved")


def list_of(tenant: Tenant, address: Callable[[str], str], file: Callable[[str, str], str]) -> Table:
    """Return the tenant's statements, the month that runs first; `address` and `file` are those of a month."""
    columns = [
        Column("Month", "name"),
        Column("Number", "number"),
        Column("Opening", "balance"),
        Column("Closing", "balance"),
        Column("State", "state"),
        Column("Files", "buttons", is_hidden=True),
    ]
    rows, found = [], months.statements_of(tenant.pk, MOST_LISTED)
    for name in months.drafts_of(tenant.pk, found):
        files = [Button("To verify", file(name, "jsonl"), f"for {name}")]
        rows.append(Row([Cell(_month(months.parsed(name)), address(name)), None, None, None, State("draft"), files]))
    for one in found:
        name = f"{one.month:%Y-%m}"
        files = [Button("To verify", file(name, "jsonl"), f"for {name}")]
        state = State("final", "good")
        rows.append(Row([Cell(_month(one.month), address(name)), one.number, one.opening, one.closing, state, files]))
    return Table("Statements", columns, rows, "Nothing was booked yet.", id="statements")


def pieces(tenant: Tenant, month: Month, form: str) -> Generator[bytes]:
    """Return a statement as one of FORMATS, piece by piece. Raises ArchiveMissingError."""
    if form != "html":
        need(tenant.pk, month.begins_at, month.ends_at - timedelta(microseconds=1))
    match form:
        case "jsonl":
            return jsonl.lines(month, tenant.name, tenant.slug)
        case "csv":
            return _csv(tables.requests(month))
        case "ledger":
            return _csv(tables.ledger(month))
        case "focus":
            return _csv(tables.focus(month, tenant.name, ISSUER))
    return _page(tenant, month)


def _csv(rows: Iterable[list[Any]]) -> Generator[bytes]:
    rows = iter(rows)
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        out = StringIO()
        csv.writer(out).writerows(map(_plain, some))
        yield out.getvalue().encode()


def _plain(row: list[Any]) -> list[Any]:
    """Return the row without what a spreadsheet would take for a formula; amounts below zero are none."""
    return [cell(one) if isinstance(one, str) and not _AMOUNT.fullmatch(one) else one for one in row]


def _page(tenant: Tenant, month: Month) -> Generator[bytes]:
    """Yield the statement as one file that needs no other."""
    styles = []
    for name in ("tokens.css", "sluice.css"):
        path = finders.find(name)
        if isinstance(path, str):
            styles.append(Path(path).read_text())
    given = {"statement": shown(tenant, month), "styles": mark_safe("\n".join(styles))}  # noqa: S308 - our own files
    yield render_to_string("statement.html", given).encode()


def download(owner: UUID, tenant: Tenant, month: Month, form: str) -> StreamingHttpResponse:
    """Return the answer with a statement as one of FORMATS, made while it is sent to the `owner` of the download; 404
    for another form, 503 where its month is archived and a file isn't there.
    """
    if form not in FORMATS:
        raise Http404
    try:
        made = pieces(tenant, month, form)
    except ArchiveMissingError as error:
        return StreamingHttpResponse([error.told.encode()], status=503, content_type="text/plain; charset=utf-8")
    response = StreamingHttpResponse(sent(owner, made), content_type=FORMATS[form][0])
    kind = {"csv": "requests.csv", "ledger": "ledger.csv", "focus": "focus.csv"}.get(form, form)
    name = f"statement-{tenant.slug}-{month.name}.{kind}"
    response.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
    response.headers["Cache-Control"] = "no-store"
    return response


def files_of(file: Callable[[str, str], str], month: Month) -> list[Button]:
    """Return the buttons of a statement's files."""
    return [Button(words, file(month.name, form)) for form, (_, words) in FORMATS.items()]
