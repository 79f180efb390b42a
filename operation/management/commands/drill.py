"""``manage.py drill``: prove that a backup can be restored, beside an installation that goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from operation.backup.archive import BackupError
from operation.backup.drill import drill
from operation.serve.processes import stopped_by_exit


class Command(BaseCommand):
    """Restore the newest backup, or the one that is named, to a place of its own; reconcile its books; tell how long it
    took; remove it. Exit with 1 unless the books are right.
    """

    help = "Restore a backup beside the installation, check its books, and remove it again."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("archive", type=Path, help="the file that `backup` made, or a folder of them: the newest")
        within = "a folder with room for the unpacked archive (the system's temporary one)"
        parser.add_argument("--within", type=Path, default=Path(tempfile.gettempdir()), help=within)

    def handle(self, *args: Any, **options: Any) -> None:
        archive = _newest(options["archive"].resolve())
        try:
            with stopped_by_exit("stopped: nothing of the drill is left"):
                done = drill(archive, options["within"].resolve(), self.stdout.write)
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(done.said.rstrip())
        size = archive.stat().st_size / 2**20
        if not done.is_right:
            raise CommandError(f"the drill with {archive} failed after {done.seconds:.1f} s")
        self.stdout.write(f"{archive} ({size:.1f} MiB): restored and its books checked in {done.seconds:.1f} s")


def _newest(place: Path) -> Path:
    if not place.is_dir():
        return place
    if not (found := sorted(place.glob("sluice-*.tar.gz"))):
        raise CommandError(f"there is no backup in {place}: `manage.py backup {place}` makes one")
    return found[-1]
