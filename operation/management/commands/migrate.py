"""``manage.py migrate``: Django's own, which gives way to whoever uses a table, and leaves a newer database alone."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate

from operation import schema


class Command(migrate.Command):
    """Migrate as Django does, a try at a time while a table is in use; `setup` does this and what belongs to it."""

    def handle(self, *args: Any, **options: Any) -> None:
        found = schema.look()
        if found.code == os.EX_CONFIG:
            raise CommandError(str(found), returncode=found.code)
        schema.patiently(partial(super().handle, *args, **options), self.stderr.write)
