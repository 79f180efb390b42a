"""Databases that the 38 migrations before 0.1.0 made: but for two columns, their tables are those of the initial ones.

To be removed with the release after 0.1.0.
"""

from __future__ import annotations

from collections.abc import Collection

from django.core.management.base import CommandError
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from gateway.runtime import epoch_triggers

APPS = ("billing", "gateway", "routing")
LAST = {
    ("billing", "0008_adapters"),
    ("gateway", "0017_invitations_by_members"),
    ("routing", "0013_adapters_priced_by_their_base"),
}
DROPPED = (
    "DROP INDEX IF EXISTS gateway_apikey_parent_id_8f40e905",  # SQLite drops no column that has one
    "ALTER TABLE gateway_apikey DROP COLUMN parent_id",
    "ALTER TABLE routing_routerule DROP COLUMN holds_answers",
)
UNFINISHED = (
    "its migrations are those before 0.1.0, and some of them are missing: first run `manage.py setup` of commit "
    "59524a2b on it (UPGRADING.md)"
)


def are_former(applied: Collection[tuple[str, str]]) -> bool:
    """Whether these are migrations before 0.1.0: some have no file here, and the last initial one isn't among them."""
    known = MigrationLoader(None).disk_migrations
    strange = any(app in APPS and (app, name) not in known for app, name in applied)
    return strange and ("billing", "0002_initial") not in applied


def take_over() -> None:
    """Drop what only former tables have, and record the initial migrations in place of all former ones; raise
    CommandError where some of those are missing.
    """
    recorder = MigrationRecorder(connection)
    applied = set(recorder.applied_migrations())
    # Former first ones have names of now, but made no such table, which is made before routing's.
    is_begun = any(app in ("gateway", "routing") for app, _ in applied)
    is_lacking = "gateway_auditevent" not in connection.introspection.table_names()
    if not are_former(applied) and not (is_begun and is_lacking):
        return
    if not applied >= LAST:
        raise CommandError(f"the database can't be taken over: {UNFINISHED}")
    with transaction.atomic(), connection.cursor() as cursor:
        epoch_triggers.EPOCH_TRIGGERS.drop(connection)  # they read the columns
        for statement in DROPPED:
            cursor.execute(statement)
        epoch_triggers.install()
        recorder.migration_qs.filter(app__in=APPS).delete()
        for (app, name), migration in MigrationLoader(None).disk_migrations.items():
            if app in APPS and migration.initial:
                recorder.record_applied(app, name)
