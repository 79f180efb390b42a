"""``manage.py backup``: database, secrets, files, adapters and workers' records in one archive, while all runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.models import ArchivedMonth
from gateway.runtime.observed import Kind, note
from operation.backup.archive import BackupError
from operation.backup.service import back_up
from operation.schema import need_database
from operation.serve.processes import stopped_by_exit
from operation.setup.steps import Steps


class Command(BaseCommand):
    """Write the archive (mode 0600) and print its path. It holds every secret: keep it like one."""

    help = "Back up database, secrets, files, adapters and workers' records into one archive, while everything runs."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", type=Path, help="a folder in which a new file is made, or that file, NAME.tar.gz")
        no_files = "leave out tenants' files and adapters, where their storage keeps copies of its own"
        parser.add_argument("--without-files", action="store_true", help=no_files)

    def handle(self, *args: Any, **options: Any) -> None:
        need_database()
        try:
            with stopped_by_exit("stopped: no backup was made"):
                made = back_up(options["target"].resolve(), Steps(sys.stderr), with_files=not options["without_files"])
        except BackupError as error:
            raise CommandError(str(error)) from error
        note(Kind.BACKUP, made.path.name, {"path": str(made.path), "bytes": made.path.stat().st_size})
        size = made.path.stat().st_size / 2**20
        of_tenants = f"tenants' files and adapters: {'left out' if options['without_files'] else made.files}"
        self.stdout.write(f"{made.path}: {made.manifest.database}, {of_tenants}, {size:.1f} MiB")
        if months := ArchivedMonth.objects.count():
            self.stdout.write(f"not in it: the files of {months} archived months in {settings.SLUICE_ARCHIVE}")
        if made.missing:
            self.stderr.write(
                f"tenants' files and adapters whose bytes are lost, which are in no backup: {made.missing}"
            )
