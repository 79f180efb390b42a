"""A flush as statements for SQLite, run on a plain `sqlite3` connection inside a transaction that is already open."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from billing.rating import FORMULA
from billing.sql import load
from billing.writer.operations import Operation
from billing.writer.rows import (
    adjustment_rows,
    closed_before,
    hold_rows,
    outbox_payload,
    revision_rows,
    usage_rows,
)
from billing.writer.state import (
    LEASE_SECONDS,
    Changes,
    Demand,
    GrantRow,
    HoldRow,
    RecordRow,
    Taking,
    View,
    WalletRow,
)

STATEMENTS = load(Path(__file__).with_name("statements.sql"))


def read(connection: sqlite3.Connection, operations: Sequence[Operation]) -> View:
    """Read what the operations need; the open immediate transaction is the lock."""
    demand = Demand.of(operations)

    def rows(name: str, ids: Sequence[UUID]) -> list[tuple[Any, ...]]:
        return connection.execute(STATEMENTS[name], (json.dumps([i.hex for i in ids]),)).fetchall() if ids else []

    grants: dict[UUID, list[GrantRow]] = defaultdict(list)
    found = rows("read_grants", demand.burning) + rows("read_every_grant", demand.restoring)
    for identifier, wallet, remaining, since, until, amount, is_voided in found:
        row = GrantRow(
            UUID(identifier), UUID(wallet), remaining, _moment(since), _moment_or_none(until), amount, bool(is_voided)
        )
        grants[row.wallet].append(row)
    wallets = [
        WalletRow(UUID(identifier), posted, held, limit, bool(is_open), _moment_or_none(change))
        for identifier, posted, held, limit, is_open, change in rows("lock_wallets", demand.wallets)
    ]
    holds = [
        HoldRow(UUID(identifier), UUID(wallet), state, amount, UUID(owner), _moment(reserved_at))
        for identifier, wallet, state, amount, owner, reserved_at in rows("lock_holds", demand.holds)
    ]
    view = View(
        now=datetime.now(UTC),
        wallets={wallet.id: wallet for wallet in wallets},
        holds={hold.id: hold for hold in holds},
        grants=grants,
        records=_records(connection, demand),
    )
    closed = closed_before(operations, view)
    if closed:
        charges = connection.execute(STATEMENTS["read_charges"], (_days(closed),)).fetchall()
        view.charges = {UUID(request): charge for request, charge in charges}
    return view


def _records(connection: sqlite3.Connection, demand: Demand) -> dict[UUID, RecordRow]:
    """The records of requests to be corrected."""
    if not demand.closed:
        return {}
    records: dict[UUID, RecordRow] = {}
    asked = connection.execute(STATEMENTS["read_records"], (_days(demand.closed),))
    for request, wallet, revision, charge, is_exact, reserved_at in asked.fetchall():
        identifier = UUID(request)
        records[identifier] = RecordRow(
            identifier, UUID(wallet), revision, charge, bool(is_exact), _moment(reserved_at)
        )
    ids = json.dumps([request.hex for request, _ in demand.closed])
    for request, amount, grant in connection.execute(STATEMENTS["read_takings"], (ids,)).fetchall():
        if (record := records.get(UUID(request))) is not None:
            record.takings.append(Taking(amount, None if grant is None else UUID(grant)))
    return records


def _days(closed: Sequence[tuple[UUID, date]]) -> str:
    return json.dumps([[request.hex, day.isoformat()] for request, day in closed])


def write(connection: sqlite3.Connection, changes: Changes) -> None:
    """Write the changes; the transaction stays open."""
    now = _text(changes.now)
    lease = _text(changes.now + timedelta(seconds=LEASE_SECONDS))
    many = connection.executemany
    if changes.reserved:
        many(STATEMENTS["insert_holds"], [(*_plain(row), now, lease) for row in hold_rows(changes)])
    if changes.amounts:
        many(STATEMENTS["extend_holds"], [(amount, request.hex) for request, amount in changes.amounts.items()])
    if changes.renewed:
        renewed = [(lease, json.dumps(dict(classes)), request.hex) for request, classes in changes.renewed.items()]
        many(STATEMENTS["renew_holds"], renewed)
    if changes.wallets:
        many(STATEMENTS["move_wallets"], [(*deltas, wallet.hex) for wallet, deltas in changes.wallets.items()])
    if changes.closed:
        many(STATEMENTS["insert_usage"], [(*_plain(row), FORMULA, now) for row in usage_rows(changes)])
    if changes.burns:
        burns = [(b.wallet.hex, b.amount, b.request.hex, b.order, b.grant and b.grant.hex, now) for b in changes.burns]
        many(STATEMENTS["insert_transfers"], burns)
    _correct(connection, changes, now)
    if changes.grants:
        many(STATEMENTS["take_grants"], [(taken, grant.hex) for grant, taken in changes.grants.items()])
    if changes.closed:
        many(STATEMENTS["delete_holds"], [(closing.operation.request.hex,) for closing in changes.closed])
    if changes.tells:
        connection.execute(STATEMENTS["insert_outbox"], (outbox_payload(changes),))


def _correct(connection: sqlite3.Connection, changes: Changes, now: str) -> None:
    if not changes.corrections:
        return
    many = connection.executemany
    many(STATEMENTS["insert_revisions"], [(*_plain(row), FORMULA, now) for row in revision_rows(changes)])
    many(STATEMENTS["insert_adjustments"], [(*_plain(row), now) for row in adjustment_rows(changes)])
    moments = [(_text(moment), wallet.hex) for wallet, moment in changes.grant_changes.items()]
    many(STATEMENTS["note_grant_changes"], moments)


def _plain(row: tuple[Any, ...]) -> list[Any]:
    """The row as Django stores it on SQLite: ids as 32 hex digits, days as text."""
    return [
        value.hex if isinstance(value, UUID) else value.isoformat() if hasattr(value, "isoformat") else value
        for value in row
    ]


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _moment(value: str | datetime) -> datetime:
    """Return the moment that a column holds: text on our own connection, already parsed on Django's."""
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=UTC)


def _moment_or_none(value: str | datetime | None) -> datetime | None:
    return None if value is None else _moment(value)
