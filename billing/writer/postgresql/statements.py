"""A flush as statements for PostgreSQL: array literals as text parameters, encoded before anything is sent."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from billing.rating import FORMULA
from billing.sql import load
from billing.writer.rows import adjustment_rows, hold_rows, outbox_payload, revision_rows, usage_rows
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

Query = tuple[str, tuple[str, ...]]  # name of the statement, parameters
Rows = Sequence[Sequence[Any]]
Encoder = Callable[[Iterable[Any]], str]


def array(values: Iterable[object]) -> str:
    """Return an array literal of numbers, dates or booleans; None is NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def uuid_array(values: Iterable[UUID | None]) -> str:
    """Return an array literal of ids, as hex digits: half the price of their usual form."""
    return "{" + ",".join(["NULL" if value is None else f"{value.int:032x}" for value in values]) + "}"


def text_array(values: Iterable[str]) -> str:
    """Return an array literal of texts, quoted."""
    return "{" + ",".join(['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values]) + "}"


_HOLD_COLUMNS: tuple[Encoder, ...] = (
    *[uuid_array] * 6, text_array, *[uuid_array] * 2, array, uuid_array, array, text_array,
)  # fmt: skip
_USAGE_COLUMNS: tuple[Encoder, ...] = (uuid_array, *[array] * 10, text_array, *[array] * 2)
_REVISION_COLUMNS: tuple[Encoder, ...] = (*[uuid_array] * 2, *[array] * 9, text_array)
_ADJUSTMENT_COLUMNS: tuple[Encoder, ...] = (
    uuid_array, *[text_array] * 2, uuid_array, *[array] * 2, uuid_array,
)  # fmt: skip


def reads(demand: Demand) -> list[Query]:
    """The first round trip after BEGIN: locks, then the clock, then what the locks protect."""
    queries: list[Query] = []
    if demand.wallets:
        queries.append(("lock_wallets", (uuid_array(demand.wallets),)))
    queries.append(("clock", ()))
    if demand.holds:
        queries.append(("lock_holds", (uuid_array(demand.holds),)))
    if demand.burning:
        queries.append(("read_grants", (uuid_array(demand.burning),)))
    if demand.closed:
        ids = uuid_array(request for request, _ in demand.closed)
        queries.append(("read_every_grant", (uuid_array(demand.restoring),)))
        queries.append(("read_records", (ids, array(day for _, day in demand.closed))))
        queries.append(("read_takings", (ids,)))
    return queries


def view(queries: Sequence[Query], results: Sequence[Rows]) -> View:
    """What the answers to `reads` say."""
    found = {name: rows for (name, _), rows in zip(queries, results, strict=True)}
    grants: dict[UUID, list[GrantRow]] = defaultdict(list)
    for row in (*found.get("read_grants", ()), *found.get("read_every_grant", ())):
        grants[row[1]].append(GrantRow(*row))
    records = {row[0]: RecordRow(*row) for row in found.get("read_records", ())}
    for request, amount, grant in found.get("read_takings", ()):
        if request in records:
            records[request].takings.append(Taking(amount, grant))
    return View(
        now=found["clock"][0][0],
        wallets={row[0]: WalletRow(*row) for row in found.get("lock_wallets", ())},
        holds={row[0]: HoldRow(*row) for row in found.get("lock_holds", ())},
        grants=grants,
        records=records,
    )


def charges_of(closed: Sequence[tuple[UUID, date]]) -> Query:
    """Ask how requests without a hold ended."""
    return "read_charges", (uuid_array(request for request, _ in closed), array(day for _, day in closed))


def writes(changes: Changes) -> list[Query]:
    """The second round trip before COMMIT; statements without rows are left out."""
    queries: list[Query] = []
    now = changes.now.isoformat()
    lease = (changes.now + timedelta(seconds=LEASE_SECONDS)).isoformat()
    if changes.reserved:
        queries.append(("insert_holds", (now, lease, *_encoded(hold_rows(changes), _HOLD_COLUMNS))))
    if changes.amounts:
        queries.append(("extend_holds", (uuid_array(changes.amounts), array(changes.amounts.values()))))
    if changes.renewed:
        ids = sorted(changes.renewed, key=lambda request: request.int)
        checkpoints = text_array(json.dumps(dict(changes.renewed[request])) for request in ids)
        queries.append(("renew_holds", (lease, uuid_array(ids), checkpoints)))
    if changes.wallets:
        posted, held = zip(*changes.wallets.values(), strict=True)
        queries.append(("move_wallets", (uuid_array(changes.wallets), array(posted), array(held))))
    if changes.closed:
        queries.append(("insert_usage", (str(FORMULA), now, *_encoded(usage_rows(changes), _USAGE_COLUMNS))))
    if changes.burns:
        burns = changes.burns
        queries.append(
            (
                "insert_transfers",
                (
                    now,
                    uuid_array(burn.wallet for burn in burns),
                    uuid_array(burn.request for burn in burns),
                    array(burn.order for burn in burns),
                    array(burn.amount for burn in burns),
                    uuid_array(burn.grant for burn in burns),
                ),
            )
        )
    queries += _corrections(changes, now)
    if changes.grants:
        queries.append(("take_grants", (uuid_array(changes.grants), array(changes.grants.values()))))
    if changes.closed:
        queries.append(("delete_holds", (uuid_array(closing.operation.request for closing in changes.closed),)))
    if changes.tells:
        queries.append(("insert_outbox", (text_array([outbox_payload(changes)]),)))
    return queries


def _corrections(changes: Changes, now: str) -> list[Query]:
    queries: list[Query] = []
    if changes.corrections:
        queries.append(("insert_revisions", (str(FORMULA), now, *_encoded(revision_rows(changes), _REVISION_COLUMNS))))
    if changes.adjustments:
        queries.append(("insert_adjustments", (now, *_encoded(adjustment_rows(changes), _ADJUSTMENT_COLUMNS))))
    if changes.grant_changes:
        moments = array(moment.isoformat() for moment in changes.grant_changes.values())
        queries.append(("note_grant_changes", (uuid_array(changes.grant_changes), moments)))
    return queries


def _encoded(rows: Iterable[tuple[Any, ...]], encoders: Sequence[Encoder]) -> list[str]:
    """Turn rows into one array literal per column."""
    return [encode(column) for encode, column in zip(encoders, zip(*rows, strict=True), strict=True)]
