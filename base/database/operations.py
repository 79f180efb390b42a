"""Operations of migrations on tables that are in use."""

from __future__ import annotations

from typing import Any

from django.db.migrations import AddIndex


class AddIndexBeside(AddIndex):
    """Add an index to a table that others read and write meanwhile (on PostgreSQL), in a migration that isn't atomic.

    It may be done again after a try that failed, which leaves an index that isn't valid. Nobody waits for it, so it
    may wait itself for whoever reads from before it, a dump or the like.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop what an earlier try has left, and make the index, unless an earlier try did."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        name = schema_editor.quote_name(self.index.name)
        if schema_editor.connection.vendor != "postgresql":
            schema_editor.execute(f"DROP INDEX IF EXISTS {name}")
            schema_editor.add_index(model, self.index)
            return
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name])
            if cursor.fetchone() == (True,):
                return
            cursor.execute("SELECT current_setting('lock_timeout')")
            [limit] = cursor.fetchone()
        schema_editor.execute("SET lock_timeout = 0")
        try:
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            schema_editor.add_index(model, self.index, concurrently=True)
        finally:
            schema_editor.execute(f"SET lock_timeout = '{limit}'")
