"""Operations of migrations on tables that are in use."""

from __future__ import annotations

from typing import Any

from django.db.migrations import AddIndex


class AddIndexBeside(AddIndex):
    """Add an index to a table that others read and write meanwhile (on PostgreSQL), in a migration that isn't atomic.

    It may be done again after a try that failed, which leaves an index that isn't valid.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop what an earlier try has left, and make the index."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        beside = {"concurrently": True} if schema_editor.connection.vendor == "postgresql" else {}
        name = schema_editor.quote_name(self.index.name)
        schema_editor.execute(f"DROP INDEX {'CONCURRENTLY ' if beside else ''}IF EXISTS {name}")
        schema_editor.add_index(model, self.index, **beside)
