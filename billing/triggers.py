"""Triggers that make append-only tables append-only and published rate cards final, on both databases.

`install` is idempotent and runs after each migrate, since altering a table on SQLite silently drops its triggers;
readiness and reconciliation check `missing`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connection as default_connection
from django.db.backends.base.base import BaseDatabaseWrapper

from base.trigger_set import Trigger, TriggerSet

ROW_EVENTS = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """Refuse `events` on `model`'s table with an integrity error that says `because`.

    `when` is a condition in SQL over OLD and NEW for the events that have them, by event, or one for each database;
    without one the event is always refused. On PostgreSQL TRUNCATE is refused as well.

    `erasable` columns name people or tenants: an UPDATE is let through that changes nothing but them, each to a value
    for which its condition over NEW holds. A condition with a subquery is `function`'s on PostgreSQL.
    """

    model: str
    because: str
    events: tuple[str, ...] = ("UPDATE", "DELETE")
    when: tuple[tuple[str, str | Mapping[str, str]], ...] = ()
    erasable: tuple[tuple[str, str], ...] = ()
    function: str = "billing_refuse_if_published"

    @property
    def table(self) -> str:
        return str(apps.get_model(self.model)._meta.db_table)

    def statements(self, vendor: str) -> Iterator[tuple[str, str]]:
        """Yield (name, statement) of each trigger; the name holds the statement's digest, so a change renames it."""
        for event in self.events:
            yield self._named(self._postgresql(event) if vendor == "postgresql" else self._sqlite(event), event)
        if vendor == "postgresql" and "DELETE" in self.events:
            yield self._named(
                f'CREATE TRIGGER {{name}} BEFORE TRUNCATE ON "{self.table}" FOR EACH STATEMENT '
                f"EXECUTE FUNCTION billing_refuse('{self.because}')",
                "TRUNCATE",
            )

    def _named(self, statement: str, event: str) -> tuple[str, str]:
        digest = hashlib.sha256(statement.encode()).hexdigest()[:8]
        name = f"guard_{self.table}_{event.lower()}_{digest}"
        return name, statement.replace("{name}", name)

    def _condition(self, event: str, vendor: str) -> str | None:
        if event == "UPDATE" and self.erasable:
            return self._is_no_erasure(vendor)
        condition = dict(self.when).get(event)
        return condition[vendor] if isinstance(condition, Mapping) else condition

    def _is_no_erasure(self, vendor: str) -> str:
        """Return the condition under which an UPDATE changes another column, erases to another value, or nothing."""
        names = [name for name, _ in self.erasable]
        if vendor == "postgresql":
            # The rows without these columns: a condition that names a column can't be made before that is migrated.
            besides = "".join(f" - '{name}'" for name in names)
            others = f"(to_jsonb(OLD){besides}) IS DISTINCT FROM (to_jsonb(NEW){besides})"
        else:
            columns = [field.column for field in apps.get_model(self.model)._meta.concrete_fields]
            others = " OR ".join(f'OLD."{name}" IS NOT NEW."{name}"' for name in columns if name not in names)
        is_not = "IS DISTINCT FROM" if vendor == "postgresql" else "IS NOT"
        changed = {name: f'OLD."{name}" {is_not} NEW."{name}"' for name in names}
        wrong = " OR ".join(f"({changed[name]} AND NOT {value})" for name, value in self.erasable)
        return f"{others} OR {wrong} OR NOT ({' OR '.join(changed.values())})"

    def _postgresql(self, event: str) -> str:
        condition = self._condition(event, "postgresql")
        if condition is None:
            function = f"billing_refuse('{self.because}')"
            return f'CREATE TRIGGER {{name}} BEFORE {event} ON "{self.table}" FOR EACH ROW EXECUTE FUNCTION {function}'
        if "SELECT" not in condition:
            return (
                f'CREATE TRIGGER {{name}} BEFORE {event} ON "{self.table}" FOR EACH ROW WHEN ({condition}) '
                f"EXECUTE FUNCTION billing_refuse('{self.because}')"
            )
        # A WHEN clause may hold no subquery: a function of its own looks it up.
        return (
            f'CREATE TRIGGER {{name}} BEFORE {event} ON "{self.table}" FOR EACH ROW '
            f"EXECUTE FUNCTION {self.function}('{self.because}')"
        )

    def _sqlite(self, event: str) -> str:
        condition = self._condition(event, "sqlite")
        when = f"WHEN {condition} " if condition else ""
        return (
            f'CREATE TRIGGER {{name}} BEFORE {event} ON "{self.table}" FOR EACH ROW {when}'
            f"BEGIN SELECT RAISE(ABORT, '{self.because}'); END"
        )


def _of_published_version(*sides: str) -> str:
    versions = ", ".join(f"{side}.version_id" for side in sides)
    return (
        f"EXISTS (SELECT 1 FROM billing_ratecardversion v WHERE v.id IN ({versions}) "  # noqa: S608 - constants
        "AND v.published_at IS NOT NULL)"
    )


_OF_CLOSED_DAY = {
    "record": "EXISTS (SELECT 1 FROM billing_wallet w WHERE w.id = NEW.wallet AND w.closed_until > NEW.settled_at)",
    "transfer": (
        "EXISTS (SELECT 1 FROM billing_ledgeraccount a JOIN billing_wallet w ON w.id = a.wallet_id "
        "WHERE a.id IN (NEW.debit_id, NEW.credit_id) AND w.closed_until > NEW.booked_at)"
    ),
}
_NOT_DROPPED = {
    name: f"NOT EXISTS (SELECT 1 FROM billing_archivedmonth m WHERE m.may_drop AND m.ends_at > OLD.{moment})"  # noqa: S608 - constants
    for name, moment in (("record", "settled_at"), ("transfer", "booked_at"))
}
_CLOSED: dict[str, Any] = {"events": ("INSERT",), "function": "billing_refuse_if_closed"}

ERASED = "erased"
"""The word that stands where a name stood."""

GUARDED: list[TriggerSpec] = [
    TriggerSpec(
        "billing.LedgerTransfer",
        "ledger transfers are append-only",
        when=(("DELETE", _NOT_DROPPED["transfer"]),),
        function="billing_refuse_unless_archived",
        erasable=(("actor", f"NEW.actor = '{ERASED}'"), ("reason", f"NEW.reason = '{ERASED}'")),
    ),
    TriggerSpec(
        "billing.UsageRecord",
        "usage records are append-only",
        when=(("DELETE", _NOT_DROPPED["record"]),),
        function="billing_refuse_unless_archived",
        erasable=(
            ("model", f"NEW.model LIKE '{ERASED}/%'"),
            ("route", "NEW.route = '{}'"),
            ("end_user", "NEW.end_user = ''"),
        ),
    ),
    TriggerSpec(
        "billing.LedgerTransfer", "this day is closed", when=(("INSERT", _OF_CLOSED_DAY["transfer"]),), **_CLOSED
    ),
    TriggerSpec("billing.UsageRecord", "this day is closed", when=(("INSERT", _OF_CLOSED_DAY["record"]),), **_CLOSED),
    TriggerSpec("billing.LedgerSeal", "seals are append-only"),
    TriggerSpec(
        "billing.ArchivedMonth",
        "archived months are append-only",
        erasable=(("may_drop", "(TRUE)"), ("dropping_at", "(TRUE)"), ("dropped_at", "(TRUE)")),
    ),
    TriggerSpec("billing.ArchivedFile", "archived files are append-only"),
    TriggerSpec(
        "billing.Statement",
        "statements are append-only",
        erasable=(("sums", f"CAST(NEW.sums AS text) LIKE '%{ERASED}/%'"),),
    ),
    TriggerSpec(
        "billing.SigningKey",
        "signing keys are append-only",
        erasable=(("sealed_key", "(TRUE)"), ("sealed_salts", "NEW.sealed_salts <> ''")),
    ),
    TriggerSpec("billing.ErasedWords", "commitments are append-only"),
    TriggerSpec("billing.PlanVersion", "plan versions are append-only"),
    TriggerSpec("billing.CostSample", "cost samples are append-only"),
    TriggerSpec(
        "billing.RateCardVersion",
        "published rate card versions are final",
        when=(("UPDATE", "OLD.published_at IS NOT NULL"), ("DELETE", "OLD.published_at IS NOT NULL")),
    ),
    TriggerSpec(
        "billing.Rate",
        "rates of a published version are final",
        events=ROW_EVENTS,
        when=(
            ("INSERT", _of_published_version("NEW")),
            ("UPDATE", _of_published_version("OLD", "NEW")),
            ("DELETE", _of_published_version("OLD")),
        ),
    ),
]


def guard(spec: TriggerSpec) -> None:
    """Add a trigger on another app's table: called by its AppConfig, before anything is migrated."""
    if spec not in GUARDED:
        GUARDED.append(spec)


_FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION billing_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION billing_refuse_if_published() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        versions uuid[] := CASE TG_OP
            WHEN 'INSERT' THEN ARRAY[NEW.version_id]
            WHEN 'DELETE' THEN ARRAY[OLD.version_id]
            ELSE ARRAY[OLD.version_id, NEW.version_id] END;
    BEGIN
        -- the share lock makes a publication that is still open either come first or wait for this row
        PERFORM 1 FROM billing_ratecardversion
            WHERE id = ANY(versions) AND published_at IS NOT NULL FOR KEY SHARE;
        IF FOUND THEN
            RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION billing_refuse_unless_archived() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_TABLE_NAME = 'billing_usagerecord' THEN
            PERFORM 1 FROM billing_archivedmonth WHERE may_drop AND ends_at > OLD.settled_at;
        ELSE
            PERFORM 1 FROM billing_archivedmonth WHERE may_drop AND ends_at > OLD.booked_at;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN OLD;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION billing_refuse_if_closed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_TABLE_NAME = 'billing_usagerecord' THEN
            PERFORM 1 FROM billing_wallet WHERE id = NEW.wallet AND closed_until > NEW.settled_at;
        ELSE
            PERFORM 1 FROM billing_ledgeraccount a JOIN billing_wallet w ON w.id = a.wallet_id
                WHERE a.id IN (NEW.debit_id, NEW.credit_id) AND w.closed_until > NEW.booked_at;
        END IF;
        IF FOUND THEN
            RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
)


def _triggers(vendor: str) -> Iterator[Trigger]:
    for spec in GUARDED:
        for name, statement in spec.statements(vendor):
            yield Trigger(name, spec.table, statement)


_GUARDS = TriggerSet("guard_", _triggers, _FUNCTIONS)


def install(connection: BaseDatabaseWrapper = default_connection) -> None:
    """Make the installed guards exactly the expected ones; tables not migrated yet are left out."""
    _GUARDS.install(connection)


def missing(connection: BaseDatabaseWrapper = default_connection) -> list[str]:
    """Return the names of guards that should exist and don't: empty when every table is guarded."""
    return _GUARDS.missing(connection)


@contextmanager
def suspended(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Suspend the guards within the context, so that tests can empty the tables. Needs a superuser on PostgreSQL."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SET session_replication_role = DEFAULT")
        return
    _GUARDS.drop(connection)
    try:
        yield
    finally:
        install(connection)


def drop_before_migrate(*, using: str = "default", plan: Sequence[Any] = (), **signal: Any) -> None:
    """Receive `pre_migrate`: SQLite remakes no table that another's trigger reads. They are installed again after."""
    from django.db import connections

    if plan and connections[using].vendor == "sqlite":
        _GUARDS.drop(connections[using])


def install_after_migrate(**options: Any) -> None:
    """Receive `post_migrate`: install the guards on the database that was migrated."""
    from django.db import connections

    install(connections[options.get("using", "default")])
