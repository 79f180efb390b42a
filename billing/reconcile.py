"""Reconciliation: finds rows of credit that contradict each other, mostly in SQL. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from django.db.transaction import atomic
from django.utils import timezone

from base.sql import load
from billing import triggers
from billing.models import Hold, RateCardVersion, UsageRecord
from billing.rating import CLASSES, FORMULAS, CardPrices
from billing.seals.proofs import contradictions

LONGEST_OPEN = timedelta(minutes=20)
"""A lease of 30 s, 15 minutes to find evidence, and the time between sweeps: no hold stays open longer."""

STATEMENTS = load(Path(__file__).with_name("sql") / "reconcile.sql")
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


_RECORDS = """
    SELECT r.wallet, named.{value} AS name, r.charge - coalesce(e.charge, 0) AS more FROM billing_usagerecord r
    LEFT JOIN billing_usagerecord e ON e.day = r.day AND e.request = r.request AND e.revision = r.revision - 1
    {join} AS named{columns} {on} WHERE r.windows IS NOT NULL
"""
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
        "records": _RECORDS.format(
            value="name",
            join="CROSS JOIN LATERAL unnest(string_to_array(r.windows, ' '))",
            columns="(name)",
            on="",
        ),
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
        "records": _RECORDS.format(
            value="value",
            join="""JOIN json_each('["' || replace(r.windows, ' ', '","') || '"]')""",
            columns="",
            on="",
        ),
    },
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction: the check's name, the id of the row, and the figures that differ."""

    check: str
    subject: str
    detail: str


def check(
    connection: BaseDatabaseWrapper, *, recompute: bool = True, since: datetime | None = None, all_seals: bool = False
) -> list[Finding]:
    """Return all findings; none when the rows agree.

    `recompute` rates the usage records (settled at or after `since`, all without it) again from their own classes,
    card version and multiplier. `all_seals` computes the root of each sealed day (from `since` on) again from its rows;
    else some blocks of some days are.
    """
    findings = [Finding("trigger_missing", name, "the table can be changed") for name in triggers.missing(connection)]
    for name, statement in STATEMENTS.items():
        with _without_time_limit(connection), connection.cursor() as cursor:
            for place, rows in _PLACES[connection.vendor].items():
                statement = statement.replace(f"{{{place}}}", rows)  # noqa: PLW2901 - made whole
            cursor.execute(statement)
            findings += [Finding(name, str(subject), detail) for subject, detail in cursor.fetchall()]
    findings += _holds_left_open(connection)
    if recompute:
        findings += _wrong_charges(connection, since)
    with _without_time_limit(connection):
        findings += [Finding("seal", *found) for found in contradictions(whole=all_seals, since=since)]
    return findings


@contextmanager
def _without_time_limit(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Lift the time limits of statements, the server's and ours, meanwhile: a check reads every row."""
    if connection.vendor != "postgresql":
        yield
        return
    with atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
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


def _wrong_charges(connection: BaseDatabaseWrapper, since: datetime | None) -> Iterator[Finding]:
    """Yield the records whose charge isn't what their tokens cost by their own card version, formula and multiplier."""
    cards = _cards(connection)
    records = UsageRecord.objects.using(connection.alias)
    if since is not None:
        records = records.filter(settled_at__gte=since)
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
    rows = records.values_list(*columns).iterator(chunk_size=10_000)
    for request, charged, refunded, card_version, number, multiplier_bp, *tokens in rows:
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
