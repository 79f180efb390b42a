"""A flush as statements for SQLite, run on a plain `sqlite3` connection inside a transaction that is already open."""

from __future__ import annotations

import json
import operator
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from base import clock
from base.clock import parsed
from base.sql import load
from billing.writer.changes import Changes
from billing.writer.operations import Operation
from billing.writer.view import (
    Demand,
    FollowUp,
    GrantRow,
    HoldRow,
    RecordRow,
    ScheduledRow,
    View,
    WalletRow,
    in_burn_order,
)
from billing.writer.writes import writes

STATEMENTS = load(Path(__file__).with_name("statements.sql"))


def read_clock(connection: sqlite3.Connection) -> datetime:
    """Return the database's time."""
    [moment] = connection.execute(clock.STATEMENTS["sqlite"]).fetchone()
    return parsed(moment)


def read(
    connection: sqlite3.Connection, operations: Sequence[Operation], demand: Demand, newest: datetime | None = None
) -> View:
    """Read what the operations demand; the open immediate transaction is the lock.

    Where the clock is before `newest` (not known: it may be), it went back since some holds were reserved: those of
    the operations' wallets are reserved now.
    """

    def rows(name: str, ids: Sequence[UUID]) -> list[tuple[Any, ...]]:
        return connection.execute(STATEMENTS[name], (json.dumps([i.hex for i in ids]),)).fetchall() if ids else []

    view = View(
        now=read_clock(connection),
        wallets={
            (wallet := UUID(identifier)): WalletRow(
                *(wallet, posted, held, limit, bool(is_open), _moment_or_none(change), version),
                *(_moment_or_none(closed), windows, pools),
            )
            for identifier, posted, held, limit, is_open, change, version, closed, windows, pools in rows(
                "lock_wallets", demand.wallets
            )
        },
        holds={hold.id: hold for hold in _holds(rows("lock_holds", demand.holds))},
        grants=_grants(rows("read_grants", demand.burning) + rows("read_every_grant", demand.restoring)),
        records=_records(connection, demand),
    )
    if newest is None or view.now < newest:
        view.redate_holds()
        now = _moment_text(view.now)
        connection.execute(STATEMENTS["redate_holds"], (now, json.dumps([i.hex for i in demand.wallets]), now))
    rest = FollowUp.of(operations, demand, view)
    view.add_open_holds(rest.due, _holds(rows("read_open_holds", rest.due)))
    view.add_scheduled(map(_scheduled, rows("read_scheduled", rest.due)))
    view.grants |= _grants(rows("read_grants", rest.unread))
    if rest.windows:
        asked = json.dumps([[wallet.hex, number, start] for wallet, number, start in rest.windows])
        found = connection.execute(STATEMENTS["read_windows"], (asked,)).fetchall()
        view.add_windows((UUID(wallet), *named) for wallet, *named in found)
    if rest.closed:
        charges = connection.execute(STATEMENTS["read_charges"], (_days(rest.closed),)).fetchall()
        view.charges = {UUID(request): charge for request, charge in charges}
    return view


def write(connection: sqlite3.Connection, changes: Changes) -> None:
    """Write the changes, one execution per row with the values that its statement's rows share; doesn't commit."""
    for name, shared, rows in writes(changes):
        first = _plain(shared)
        connection.executemany(STATEMENTS[name], [(*first, *_plain(row)) for row in rows])


def _holds(rows: Iterable[tuple[Any, ...]]) -> list[HoldRow]:
    return [
        HoldRow(UUID(identifier), UUID(wallet), state, amount, UUID(owner), parsed(reserved_at), windows, model)
        for identifier, wallet, state, amount, owner, reserved_at, windows, model in rows
    ]


def _grants(rows: Iterable[tuple[Any, ...]]) -> dict[UUID, list[GrantRow]]:
    return in_burn_order(
        GrantRow(
            *(UUID(grant), UUID(wallet), left, parsed(begun), _moment_or_none(ends), amount, bool(voided)),
            *(*terms, _moment_or_none(rollover_until)),
        )
        for grant, wallet, left, begun, ends, amount, voided, *terms, rollover_until in rows
    )


def _scheduled(row: tuple[Any, ...]) -> ScheduledRow:
    identifier, wallet, amount, begins, ends, *terms, rollover_until, paid, currency, reference = row
    found = [UUID(identifier), UUID(wallet), amount, parsed(begins), _moment_or_none(ends), *terms]
    found += [_moment_or_none(rollover_until), paid, currency, reference]
    return ScheduledRow(*found)


def _records(connection: sqlite3.Connection, demand: Demand) -> dict[UUID, RecordRow]:
    """The records of requests to be corrected."""
    if not demand.closed:
        return {}
    records: dict[UUID, RecordRow] = {}
    asked = connection.execute(STATEMENTS["read_records"], (_days(demand.closed),))
    for request, wallet, revision, charge, is_exact, reserved_at, windows, refunded, rerating, model in asked:
        identifier, since = UUID(request), parsed(reserved_at)
        records[identifier] = RecordRow(
            *(identifier, UUID(wallet), revision, charge, bool(is_exact), since, windows),
            refunded,
            _uuid_or_none(rerating),
            model,
        )
    ids = json.dumps([request.hex for request, _ in demand.closed])
    for request, amount, grant, code in connection.execute(STATEMENTS["read_burns"], (ids,)).fetchall():
        if (record := records.get(UUID(request))) is not None:
            record.book(amount, _uuid_or_none(grant), code)
    return records


def _days(closed: Sequence[tuple[UUID, date]]) -> str:
    return json.dumps([[request.hex, day.isoformat()] for request, day in closed])


def _plain(values: Iterable[Any]) -> list[Any]:
    """The values as Django stores them on SQLite."""
    return [encode(value) if (encode := _ENCODERS.get(type(value))) else value for value in values]


def _moment_text(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


_ENCODERS: dict[type, Callable[[Any], str]] = {
    UUID: operator.attrgetter("hex"),
    datetime: _moment_text,
    date: date.isoformat,
}


def _moment_or_none(value: str | datetime | None) -> datetime | None:
    return None if value is None else parsed(value)


def _uuid_or_none(value: str | None) -> UUID | None:
    return None if value is None else UUID(value)
