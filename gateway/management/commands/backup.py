"""``manage.py backup``: database, secrets and the workers' records in one archive, while everything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.backup.archive import BackupError
from gateway.backup.service import back_up
from gateway.management.doctor import database_problem


class Command(BaseCommand):
    """Write the archive (mode 0600) and print its path. It holds every secret: keep it like one."""

    help = "Back up the database, the secrets and the workers' records into one archive, while everything runs."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", type=Path, help="a new file, or a folder in which one is made")

    def handle(self, *args: Any, **options: Any) -> None:
        if problem := database_problem():
            raise CommandError(problem)
        try:
            path, manifest = back_up(options["target"].resolve())
        except BackupError as error:
            raise CommandError(str(error)) from error
        size = path.stat().st_size / 2**20
        self.stdout.write(f"{path}: {manifest.database}, {len(manifest.members)} files, {size:.1f} MiB")
