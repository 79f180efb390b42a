"""A wallet's ledger as a table and as CSV, in words, with the balance after each transfer."""

from __future__ import annotations

import csv
from collections.abc import Callable, Generator
from io import StringIO
from uuid import UUID

from django.core import signing
from django.utils.html import format_html

from base.units import format_credits
from billing.codes import Code
from billing.models import LedgerTransfer
from billing.selectors.ledger import LedgerCursor, LedgerLine, LedgerPage, ledger_of
from control.screens.figures import amount, cell, moment
from control.screens.tables import Cell, Column, Row, Table

SALT = "gateway.api.wallet"
MOST_LINES = 100_000
_READ_AT_ONCE = 1_000
WORDS = {
    Code.GRANT: "Credit given",
    Code.CHARGE: "Request",
    Code.TRUE_UP: "Request, corrected",
    Code.EXPIRY: "Credit expired",
    Code.VOID: "Credit taken back",
    Code.ADJUSTMENT: "Adjustment",
    Code.OVERDRAFT_REPAID: "Overdraft repaid",
    Code.REFUND: "Refund",
    Code.REQUEST_REFUND: "Request, refunded",
    Code.RERATING: "Request, re-rated",
    Code.ROLLOVER: "Rolled over",
    Code.PROMISE: "Request, promise missed",
}


def signed(cursor: LedgerCursor) -> str:
    """Return the cursor as text for an address, signed since it carries the balance."""
    return signing.dumps([cursor.id, cursor.balance], salt=SALT)


def cursor_of(text: str) -> LedgerCursor:
    """Return the cursor in the signed text; raises `signing.BadSignature` for another text."""
    identifier, balance = signing.loads(text, salt=SALT)
    return LedgerCursor(identifier, balance)


def ledger_table(page: LedgerPage, request_address: Callable[[UUID], str], *, older: str, newest: str) -> Table:
    """Return a page of the ledger; `older` and `newest` are addresses of pages."""
    columns = [
        Column("When", "time"),
        Column("What", "name"),
        Column("Credits", "balance"),
        Column("Balance after", "balance"),
    ]
    rows = [
        Row([moment(line.transfer.booked_at), _what(line, request_address), _signed_amount(line.amount), line.balance])
        for line in page.lines
    ]
    return Table("Ledger", columns, rows, "Nothing was booked yet.", newer=newest, older=older, id="ledger")


def _what(line: LedgerLine, request_address: Callable[[UUID], str]) -> Cell:
    transfer = line.transfer
    address = request_address(transfer.request) if transfer.request else ""
    return Cell(WORDS[Code(transfer.code)], address, reason_of(transfer))


def reason_of(transfer: LedgerTransfer) -> str:
    """Return the reason of a transfer, with the payment that it is about."""
    references = {Code.GRANT: "paid_reference", Code.REFUND: "refund_reference"}
    reference = getattr(transfer.grant, references.get(Code(transfer.code), ""), "")
    return f"{transfer.reason} ({reference})" if reference else transfer.reason


def _signed_amount(micro: int) -> str:
    shown = amount(micro, is_charge=False)
    return format_html("<span>+{}</span>", shown) if micro > 0 else shown


def ledger_csv(wallet: UUID) -> Generator[bytes]:
    """Yield the wallet's ledger, newest first, at most `MOST_LINES` transfers; credits are exact."""
    yield _lines([["time", "what", "credits", "balance", "request", "reason"]])
    before, left = None, MOST_LINES
    while left > 0:
        page = ledger_of(wallet, limit=_READ_AT_ONCE, before=before)
        yield _lines([_values(line) for line in page.lines])
        before, left = page.next, left - len(page.lines)
        if before is None:
            return


def _values(line: LedgerLine) -> list[object]:
    transfer = line.transfer
    return [
        transfer.booked_at.isoformat(timespec="seconds"),
        WORDS[Code(transfer.code)],
        format_credits(line.amount),
        format_credits(line.balance),
        transfer.request or "",
        cell(reason_of(transfer)),
    ]


def _lines(rows: list[list[object]]) -> bytes:
    out = StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()
