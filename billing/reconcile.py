"""Reconciliation: finds rows of credit that contradict each other, mostly in SQL. It changes nothing but what it notes.

A check reads all rows, or those that came since the last good one: what the rows before add up to was noted then. So
the cost of a check follows what is new, and not how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, Q, QuerySet
from django.db.transaction import atomic
from django.utils import timezone

from base import clock
from base.ids import day_of, first_at, moment_of
from base.sql import load
from billing import triggers
from billing.models import ArchivedMonth, CheckedSum, Hold, LedgerTransfer, RateCardVersion, Reconciliation, UsageRecord
from billing.rating import CLASSES, FORMULAS, CardPrices
from billing.seals.archived import edge, faults
from billing.seals.proofs import contradictions

LONGEST_OPEN = timedelta(minutes=20)
"""A lease of 30 s, 15 minutes to find evidence, and the time between sweeps: no hold stays open longer."""
SETTLED = timedelta(minutes=15)
"""What was booked so long ago has been committed."""
MOST_SPANS = 100
_CHUNK = 10_000
_HOUR = timedelta(hours=1)

_FOLDER = Path(__file__).with_name("sql")
STATEMENTS, SUMS = load(_FOLDER / "reconcile.sql"), load(_FOLDER / "sums.sql")
_PENDING = {
    "postgresql": """
        SELECT jsonb_array_elements_text(CASE jsonb_typeof(payload -> 'records') WHEN 'array' THEN payload -> 'records'
            END) FROM billing_outboxevent WHERE topic = 'usage'
        UNION SELECT jsonb_array_elements(CASE jsonb_typeof(payload -> 'revisions') WHEN 'array'
            THEN payload -> 'revisions' END) ->> 0 FROM billing_outboxevent WHERE topic = 'usage'
    """,
    "sqlite": """
        SELECT replace(named.value, '-', '') FROM billing_outboxevent o, json_each(o.payload, '$.records') named
        WHERE o.topic = 'usage'
        UNION SELECT replace(named.value ->> 0, '-', '') FROM billing_outboxevent o,
            json_each(o.payload, '$.revisions') named WHERE o.topic = 'usage'
    """,
}


_PLACES = {
    "postgresql": {
        "pending": _PENDING["postgresql"],
        "kept": """
            SELECT w.id AS wallet, k.key AS name, (k.value ->> 0)::bigint AS spent, (k.value ->> 1)::bigint AS held
            FROM billing_wallet w, jsonb_each(nullif(w.windows, '')::jsonb) k
        """,
        "pools": """
            SELECT w.id AS wallet, k.key AS models, (k.value ->> 0)::bigint AS rest, (k.value ->> 1)::bigint AS held
            FROM billing_wallet w, jsonb_each(nullif(w.pools, '')::jsonb) k
        """,
        "line": "chr(10)",
        "holds": """
            SELECT h.wallet_id, named.name, h.amount
            FROM billing_hold h, unnest(string_to_array(h.windows, ' ')) AS named(name)
        """,
        "named": "CROSS JOIN LATERAL unnest(string_to_array(r.windows, ' ')) AS named(name)",
        "name": "name",
        "number_of": "CAST(nullif(split_part(l.name, '.', 1), '') AS integer)",
        "start_of": "CAST(nullif(split_part(l.name, '.', 2), '') AS bigint)",
    },
    "sqlite": {
        "pending": _PENDING["sqlite"],
        "kept": """
            SELECT w.id AS wallet, k.key AS name, k.value ->> 0 AS spent, k.value ->> 1 AS held
            FROM billing_wallet w, json_each(nullif(w.windows, '')) k
        """,
        "pools": """
            SELECT w.id AS wallet, k.key AS models, k.value ->> 0 AS rest, k.value ->> 1 AS held
            FROM billing_wallet w, json_each(nullif(w.pools, '')) k
        """,
        "line": "char(10)",
        "holds": """
            SELECT h.wallet_id, named.value AS name, h.amount
            FROM billing_hold h, json_each('["' || replace(h.windows, ' ', '","') || '"]') named
        """,
        "named": """JOIN json_each('["' || replace(r.windows, ' ', '","') || '"]') AS named""",
        "name": "value",
        "number_of": "CAST(substr(l.name, 1, instr(l.name, '.') - 1) AS integer)",
        "start_of": "CAST(substr(l.name, instr(l.name, '.') + 1) AS integer)",
    },
}
_ALL = {
    "records": "billing_usagerecord",
    "transfers": "billing_ledgertransfer",
    "touched": "billing_usagerecord",
    "theirs": "billing_ledgertransfer",
    "grants": "billing_creditgrant",
    "filled": "billing_creditgrant",
    "windows": "billing_budgetwindow",
    "checked": "billing_checkedsum",
    "rollups": "billing_usagerollup",
    "summed": "billing_usagerecord",
    "days": "billing_usageday",
    "of_days": "billing_usagerollup",
    "totals": "billing_keytotal",
    "its": "r.request = t.request",
    "base": "archived",
}
_NEW = {
    "records": "(SELECT * FROM billing_usagerecord WHERE id >= {record})",
    "transfers": "(SELECT * FROM billing_ledgertransfer WHERE id > {transfer})",
    "touched": """(SELECT * FROM billing_usagerecord WHERE id IN (
        SELECT id FROM billing_usagerecord WHERE id >= {record} UNION SELECT other.id FROM {transfers} AS t
            JOIN billing_usagerecord first ON first.id = t.request
            JOIN billing_usagerecord other ON other.day = first.day AND other.request = first.request))""",
    "theirs": "(SELECT * FROM billing_ledgertransfer WHERE request IN (SELECT request FROM {touched} AS r))",
    "grants": """(SELECT * FROM billing_creditgrant WHERE id IN (
        SELECT id FROM billing_creditgrant WHERE remaining > 0
        UNION SELECT subject FROM billing_checkedsum WHERE kind = 'grant' AND amount <> 0
        UNION SELECT grant_id FROM {transfers} AS t WHERE grant_id IS NOT NULL))""",
    "filled": """(SELECT * FROM billing_creditgrant WHERE id IN (
        SELECT grant_id FROM {transfers} AS t
        JOIN billing_ledgeraccount c ON c.id = t.credit_id AND c.kind = 'wallet' WHERE t.code IN (1, 6, 11)))""",
    "windows": """(SELECT w.* FROM looked l JOIN billing_budgetwindow w
        ON w.wallet_id = l.wallet AND w.number = {number_of} AND w.start = {start_of})""",
    "checked": """(SELECT c.* FROM looked l JOIN billing_checkedsum c
        ON c.kind = 'window' AND c.subject = l.wallet AND c.name = l.name)""",
    "rollups": "(SELECT * FROM billing_usagerollup WHERE {hours})",
    "summed": "(SELECT * FROM billing_usagerecord WHERE {requests})",
    "days": "(SELECT * FROM billing_usageday WHERE {whole_days})",
    "of_days": "(SELECT * FROM billing_usagerollup WHERE {hours_of_days})",
    "totals": "(SELECT * FROM billing_keytotal WHERE 1 = 0)",
    "its": "r.id = t.request",
    "base": "amount",
}
_NOTE = """
    INSERT INTO billing_checkedsum AS present (kind, subject, name, amount, archived)
    SELECT '{kind}', subject, name, {values} FROM ({sums}) AS made WHERE true
    ON CONFLICT (kind, subject, name) DO UPDATE SET {added}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction: the check's name, the id of the row, and the figures that differ."""

    check: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Reach:
    """Up to where the books were found right: the last transfer, and the first id of a record that came later."""

    transfer: int
    record: UUID


Told = Callable[[int], None]
"""Is told how many rows of a check were read since it was told last."""


def last_good() -> Reconciliation | None:
    """Return the last check that found nothing: from where it ended the next goes on."""
    return Reconciliation.objects.filter(transfer__isnull=False).order_by("-id").first()


def last_reach() -> Reach | None:
    """Return up to where the books were found right; None where no check has noted it."""
    run = last_good()
    if run is None or run.transfer is None or run.record is None:
        return None
    return Reach(run.transfer, run.record)


def reached(connection: BaseDatabaseWrapper) -> Reach:
    """Return up to where all rows are there: what was booked a while ago, and of requests that run none.

    A record's id is its request's, or was made with a correction: none comes to those below the oldest open hold's.
    """
    since = clock.now() - SETTLED
    held = Hold.objects.using(connection.alias).order_by("id").values_list("id", flat=True).first()
    transfers = LedgerTransfer.objects.using(connection.alias).filter(booked_at__lt=since).order_by("-id")
    last = transfers.values_list("id", flat=True).first()
    return Reach(last or 0, first_at(since) if held is None else min(held, first_at(since)))


def rows_of(connection: BaseDatabaseWrapper, reach: Reach | None) -> int:
    """Return how many rows a check reads, those of each of its steps together."""
    records, transfers = _new_records(connection, reach).count(), _new_transfers(connection, reach).count()
    steps = sum(_rows_read(statement, records, transfers) for statement in STATEMENTS.values())
    return steps + records


def check(
    connection: BaseDatabaseWrapper,
    *,
    reach: Reach | None = None,
    recompute: bool = True,
    all_seals: bool = False,
    told: Told = lambda _: None,
) -> list[Finding]:
    """Return all findings; none when the rows agree.

    It reads the rows that came behind `reach`, or all without one. `recompute` rates their usage again by card version
    and multiplier. `all_seals` computes the root of each sealed day again from its rows; else some blocks of some days
    are.
    """
    findings = [Finding("trigger_missing", name, "the table can be changed") for name in triggers.missing(connection)]
    hours: set[datetime] = set()
    with _without_time_limit(connection):
        if reach is not None or recompute:
            findings += _wrong_charges(connection, reach, hours, told)
        places = _places(connection, reach, hours)
        records, transfers = _new_records(connection, reach).count(), _new_transfers(connection, reach).count()
    for name, statement in STATEMENTS.items():
        with _without_time_limit(connection), connection.cursor() as cursor:
            cursor.execute(_filled_in(statement, places))
            findings += [Finding(name, str(subject), detail) for subject, detail in cursor.fetchall()]
        told(_rows_read(statement, records, transfers))
    findings += _holds_left_open(connection)
    with _without_time_limit(connection):
        findings += [Finding("seal", *found) for found in contradictions(whole=all_seals)]
    if reach is None:
        findings += [Finding("archive", "file", fault) for fault in faults(ArchivedMonth.objects.all())]
    return findings


def note(connection: BaseDatabaseWrapper, before: Reach | None, now: Reach) -> None:
    """Note what the rows up to `now` add up to, those up to `before` being noted; without it all are added up."""
    if before is None:
        CheckedSum.objects.using(connection.alias).exclude(archived=0, amount=0).update(amount=F("archived"))
    ids = {"record": literal(connection, now.record), "transfer": now.transfer}
    records, transfers = "id < {record}".format(**ids), "id <= {transfer}".format(**ids)
    if before is not None:
        records += f" AND id >= {literal(connection, before.record)}"
        transfers += f" AND id > {before.transfer}"
    with _without_time_limit(connection):
        add_up(connection, records, transfers)


def add_up(connection: BaseDatabaseWrapper, records: str, transfers: str, *, archived: bool = False) -> None:
    """Add the rows under these conditions to the noted sums; `archived` ones are in them, and noted as gone into the
    archive.
    """
    places = _PLACES[connection.vendor] | {
        "records": f"(SELECT * FROM billing_usagerecord WHERE {records})",  # noqa: S608 - written here
        "transfers": f"(SELECT * FROM billing_ledgertransfer WHERE {transfers})",  # noqa: S608 - likewise
    }
    column = "archived" if archived else "amount"
    values = "0, CAST(amount AS bigint)" if archived else "CAST(amount AS bigint), 0"
    added = f"{column} = present.{column} + excluded.{column}"
    with connection.cursor() as cursor:
        for kind, sums in SUMS.items():
            statement = _NOTE.format(kind=kind, values=values, added=added, sums=_filled_in(sums, places))
            cursor.execute(statement)


def _filled_in(statement: str, places: Mapping[str, str]) -> str:
    """Return a statement with its places filled, and theirs."""
    while any(f"{{{name}}}" in statement for name in places):
        for name, rows in places.items():
            statement = statement.replace(f"{{{name}}}", rows)
    return statement


def _rows_read(statement: str, records: int, transfers: int) -> int:
    """Return how many rows a statement reads, roughly: those of both tables that it names."""
    of_records = any(f"{{{name}}}" in statement for name in ("records", "touched", "summed", "window", "beyond"))
    of_transfers = any(f"{{{name}}}" in statement for name in ("transfers", "theirs", "wallet", "grant"))
    return records * of_records + transfers * of_transfers


def _places(connection: BaseDatabaseWrapper, reach: Reach | None, hours: set[datetime]) -> dict[str, str]:
    places = {**_PLACES[connection.vendor], **SUMS}
    if reach is None:
        return places | _ALL | _since_archive(connection)
    until = edge()
    spans = list(_spans({hour for hour in hours if until is None or hour >= until}))
    days = list(_spans({hour.replace(hour=0) for hour in hours}, timedelta(days=1)))
    return (
        places
        | _NEW
        | {
            "record": literal(connection, reach.record),
            "transfer": str(reach.transfer),
            "hours": _any(f"hour >= {literal(connection, a)} AND hour < {literal(connection, b)}" for a, b in spans),
            "requests": _any(_of_requests(connection, *span) for span in spans),
            "whole_days": _any(f"day >= '{a.date()}' AND day < '{b.date()}'" for a, b in days),
            "hours_of_days": _any(
                f"hour >= {literal(connection, a)} AND hour < {literal(connection, b)}" for a, b in days
            ),
        }
    )


def _since_archive(connection: BaseDatabaseWrapper) -> dict[str, str]:
    """Return the parts of the sums and of the records whose days have all their records in the table."""
    until = edge()
    if until is None:
        return {}
    return {
        "rollups": f"(SELECT * FROM billing_usagerollup WHERE hour >= {literal(connection, until)})",  # noqa: S608
        "summed": f"(SELECT * FROM billing_usagerecord WHERE day >= '{until.astimezone(UTC).date()}')",  # noqa: S608
    }


def _any(conditions: Iterator[str]) -> str:
    return " OR ".join(conditions) or "1 = 0"


def _of_requests(connection: BaseDatabaseWrapper, begin: datetime, end: datetime) -> str:
    first, last = first_at(begin), first_at(end)
    ids = f"request >= {literal(connection, first)} AND request < {literal(connection, last)}"
    return f"day >= '{day_of(first)}' AND day <= '{day_of(last)}' AND {ids}"


def literal(connection: BaseDatabaseWrapper, value: UUID | datetime) -> str:
    """Return an id or a moment as the database writes it."""
    is_sqlite = connection.vendor == "sqlite"
    if isinstance(value, UUID):
        return f"'{value.hex if is_sqlite else value}'"
    return f"'{value:%Y-%m-%d %H:%M:%S}'" if is_sqlite else f"'{value:%Y-%m-%d %H:%M:%S}+00'"


def _spans(begins: set[datetime], length: timedelta = _HOUR) -> Iterator[tuple[datetime, datetime]]:
    """Yield the times that hours, or days, make together; one where they are many."""
    ordered = sorted(begins)
    spans: list[tuple[datetime, datetime]] = []
    for begin in ordered:
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], begin + length)
        else:
            spans.append((begin, begin + length))
    yield from spans if len(spans) <= MOST_SPANS else [(ordered[0], ordered[-1] + length)]


def _new_records(connection: BaseDatabaseWrapper, reach: Reach | None) -> QuerySet[UsageRecord]:
    records = UsageRecord.objects.using(connection.alias)
    return records.all() if reach is None else records.filter(id__gte=reach.record)


def _new_transfers(connection: BaseDatabaseWrapper, reach: Reach | None) -> QuerySet[LedgerTransfer]:
    transfers = LedgerTransfer.objects.using(connection.alias)
    return transfers.all() if reach is None else transfers.filter(id__gt=reach.transfer)


@contextmanager
def _without_time_limit(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Lift the time limits of statements, the server's and ours, meanwhile: a check reads every row."""
    if connection.vendor != "postgresql":
        yield
        return
    with atomic(using=connection.alias), connection.cursor() as cursor:
        # Guessing at rows of JSON, the planner would compile each statement, which takes a second.
        cursor.execute("SET LOCAL statement_timeout = 0; SET LOCAL jit = off")
        session = connection.connection
        limit, session.answer_seconds = getattr(session, "answer_seconds", None), None
        yield
        session.answer_seconds = limit


def _holds_left_open(connection: BaseDatabaseWrapper) -> Iterator[Finding]:
    limit = timezone.now() - LONGEST_OPEN
    over = Q(lease_until__lt=limit) | Q(orphaned_at__lt=limit)
    late = Hold.objects.using(connection.alias).filter(over)
    for identifier, lease_until, orphaned_at in late.values_list("id", "lease_until", "orphaned_at"):
        since = min(filter(None, (lease_until, orphaned_at)))
        yield Finding("hold_left_open", str(identifier), f"its lease was over at {since:%Y-%m-%d %H:%M:%S}")


def _wrong_charges(
    connection: BaseDatabaseWrapper, reach: Reach | None, hours: set[datetime], told: Told
) -> Iterator[Finding]:
    """Yield the records whose charge isn't what their tokens cost by their own card version, formula and multiplier.

    To `hours` come the hours of their requests.
    """
    cards = _cards(connection)
    # Plain tuples: as model instances a million records take three times as long.
    columns = (
        "request",
        "charge",
        "refunded",
        "card_version",
        "formula",
        "multiplier_bp",
        *(f"{name}_tokens" for name in CLASSES),
    )
    rows = _new_records(connection, reach).values_list(*columns).iterator(chunk_size=_CHUNK)
    for number_of_row, (request, charged, refunded, card_version, number, multiplier_bp, *tokens) in enumerate(rows, 1):
        if number_of_row % _CHUNK == 0:
            told(_CHUNK)
        if reach is not None:
            hours.add(moment_of(request).replace(minute=0, second=0, microsecond=0))
        charge = charged + refunded
        card, formula = cards.get(card_version), FORMULAS.get(number)
        if not any(tokens):
            if charge:
                yield Finding("charge_recomputed", str(request), f"{charge} charged for nothing")
        elif card is None or formula is None:
            detail = f"card version {card_version} or formula {number} is unknown"
            yield Finding("charge_recomputed", str(request), detail)
        elif charge != (expected := formula(dict(zip(CLASSES, tokens, strict=True)), card, multiplier_bp)):
            detail = f"{charge} charged, {expected} by its card version"
            yield Finding("charge_recomputed", str(request), detail)


def _cards(connection: BaseDatabaseWrapper) -> dict[UUID, CardPrices]:
    versions = RateCardVersion.objects.using(connection.alias).filter(published_at__isnull=False)
    return {
        version.pk: CardPrices.build(
            version.pk,
            version.request_fee,
            [(rate.tier_min_context, rate.usage_class, rate.rate) for rate in version.rates.all()],
        )
        for version in versions.prefetch_related("rates")
    }
