"""A flush as statements for PostgreSQL: array literals as text parameters, encoded before anything is sent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import starmap
from pathlib import Path
from typing import Any
from uuid import UUID

from base import clock
from base.sql import load
from billing.writer.changes import Changes
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
# A flush of many wallets skips those that are locked; a wallet's turn (`locks.py`) and `apply_now` wait for the lock.
STATEMENTS |= {f"{name}_skipping": f"{STATEMENTS[name]} SKIP LOCKED" for name in ("lock_wallets", "lock_holds")}

Query = tuple[str, tuple[str, ...]]  # name of the statement, parameters
Rows = Sequence[Sequence[Any]]

CLOCK_TOLERANCE = timedelta(seconds=0.5)
"""How far the clock may be from where a flush that doesn't read it takes it to be. Leases have seconds to spare."""


def sql_of(query: Query) -> str:
    """Return the text of a query's statement."""
    now = clock.STATEMENTS["postgresql"]
    return now if query[0] == "clock" else _timed(STATEMENTS[query[0]], now)


@functools.lru_cache(maxsize=256)
def _timed(statement: str, now: str) -> str:
    """Return the statement by that clock: the same object each time, which is found among the prepared ones sooner."""
    return statement.replace("{clock}", now)


def array(values: Iterable[object]) -> str:
    """Return an array literal of numbers, dates or booleans; None is NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def uuid_array(values: Iterable[UUID | None]) -> str:
    """Return an array literal of ids, as hex digits: encoded in half the time of their usual form."""
    return "{" + ",".join(["NULL" if value is None else f"{value.int:032x}" for value in values]) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def reads(demand: Demand, *, waits: bool = False) -> list[Query]:
    """The first round trip after BEGIN: locks, then the clock, then what the locks protect.

    Rows that another transaction has locked are left out, unless the flush `waits` for them.
    """
    how = "" if waits else "_skipping"
    queries: list[Query] = []
    if demand.wallets:
        queries.append((f"lock_wallets{how}", (uuid_array(demand.wallets),)))
    queries.append(("clock", ()))
    if demand.holds:
        queries.append((f"lock_holds{how}", (uuid_array(demand.holds),)))
    if demand.burning:
        queries.append(("read_grants", (uuid_array(demand.burning),)))
    if demand.closed:
        ids = uuid_array(request for request, _ in demand.closed)
        queries.append(("read_every_grant", (uuid_array(demand.restoring),)))
        queries.append(("read_records", (ids, array(day for _, day in demand.closed))))
        queries.append(("read_burns", (ids,)))
    return queries


def view(queries: Sequence[Query], results: Sequence[Rows]) -> View:
    """Return the view that the results of `reads` make."""
    found = {name.removesuffix("_skipping"): rows for (name, _), rows in zip(queries, results, strict=True)}
    records = {row[0]: RecordRow(*row) for row in found.get("read_records", ())}
    for request, amount, grant, code in found.get("read_burns", ()):
        if request in records:
            records[request].book(amount, grant, code)
    return View(
        now=found["clock"][0][0],
        wallets={row[0]: WalletRow(*row) for row in found.get("lock_wallets", ())},
        holds={row[0]: HoldRow(*row) for row in found.get("lock_holds", ())},
        grants=in_burn_order(starmap(GrantRow, (*found.get("read_grants", ()), *found.get("read_every_grant", ())))),
        records=records,
    )


def redating(known: View) -> Query:
    """Return the statement that does in the database what `View.redate_holds` does in the view."""
    return "redate_holds", (known.now.isoformat(), uuid_array(known.wallets))


def follow_up_reads(rest: FollowUp) -> list[Query]:
    """Return the reads of a further round trip; mostly none."""
    queries: list[Query] = []
    if rest.due:
        queries.append(("read_open_holds", (uuid_array(rest.due),)))
        queries.append(("read_scheduled", (uuid_array(rest.due),)))
    if rest.unread:
        queries.append(("read_grants", (uuid_array(rest.unread),)))
    if rest.closed:
        ids, days = zip(*rest.closed, strict=True)
        queries.append(("read_charges", (uuid_array(ids), array(days))))
    if rest.absent:
        queries.append(("read_absent", (uuid_array(rest.absent),) * 2))
    if rest.windows:
        wallets, *named = zip(*rest.windows, strict=True)
        queries.append(("read_windows", (uuid_array(wallets), *map(array, named))))
    return queries


def complete(known: View, rest: FollowUp, queries: Sequence[Query], results: Sequence[Rows]) -> None:
    """Add to the view what `follow_up_reads` returned."""
    found = {name: rows for (name, _), rows in zip(queries, results, strict=True)}
    known.add_open_holds(rest.due, [HoldRow(*row) for row in found.get("read_open_holds", ())])
    known.add_scheduled(ScheduledRow(*row) for row in found.get("read_scheduled", ()))
    known.grants |= in_burn_order(starmap(GrantRow, found.get("read_grants", ())))
    known.charges = {request: charge for request, charge in found.get("read_charges", ())}  # noqa: C416 - typed
    known.locked = frozenset(row[0] for row in found.get("read_absent", ()))
    known.add_windows(found.get("read_windows", ()))  # type: ignore[arg-type] # rows of this statement


def encoded(changes: Changes) -> list[Query]:
    """Return the second round trip before COMMIT: per statement the values its rows share, then one array per
    column.
    """
    return [
        (name, (*map(_scalar, shared), *map(_column, zip(*rows, strict=True))))
        for name, shared, rows in writes(changes)
    ]


def encoded_as_known(known: View, changes: Changes) -> list[Query]:
    """Return the only round trip of a flush that was decided from `known` without reading it."""
    rows: list[tuple[Any, ...]] = []
    until = changes.now + CLOCK_TOLERANCE
    for identifier, (posted, held) in changes.wallets.items():
        row = known.wallets[identifier]
        change_at = row.next_grant_change_at
        until = until if change_at is None else min(until, change_at)
        kept = changes.windows.get(identifier), changes.pools.get(identifier)
        rows.append((identifier, row.version, row.available - posted + held, change_at, posted, held, *kept))
    clock_is = ((changes.now - CLOCK_TOLERANCE).isoformat(), until.isoformat())
    move = (*map(_column, zip(*rows, strict=True)), str(len(rows)), *clock_is)
    return [("move_known_wallets", move), *(query for query in encoded(changes) if query[0] != "move_wallets")]


def _scalar(value: int | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    UUID: lambda value: f"{value.int:032x}",
    str: _quoted,
    datetime: datetime.isoformat,
    date: str,
    int: str,
    bool: str,
    type(None): lambda _: "NULL",
}


def _column(values: tuple[Any, ...]) -> str:
    """Return a column as an array literal."""
    try:
        if len(values) == 1:  # most columns of a gateway that isn't busy
            return "{" + _TEXTS[type(values[0])](values[0]) + "}"
        return "{" + ",".join([_TEXTS[type(value)](value) for value in values]) + "}"
    except KeyError as error:
        raise ValueError(f"no column holds such a value: {error}") from None
