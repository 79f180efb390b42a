"""``manage.py archive YYYY-MM [--drop]``: a month's usage and charges into files, and out of the tables."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.seals.archived import ArchiveMissingError, folder_of
from billing.services import archive
from billing.services.reconciliation import BooksBusyError
from billing.statements.months import parsed
from operation.schema import need_database


class Command(BaseCommand):
    """Write files, verify them against the seals, and with --drop remove rows; it may be run again at any time."""

    help = "Put a month that is over and sealed into files, and with --drop take its requests out of the tables."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the month, and whether its rows go."""
        parser.add_argument("month", metavar="YYYY-MM")
        parser.add_argument("--drop", action="store_true", help="then remove its requests' rows from the tables")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        need_database()
        try:
            month = archive.write(parsed(options["month"]), self.stderr.write)
            self.stdout.write(f"{month} is in {folder_of(month.month)}: no backup has it, keep a copy elsewhere")
            if options["drop"]:
                dropped = archive.drop(month, self.stderr.write)
                self.stdout.write(f"{month} is out of the tables, {dropped:,} requests of it now")
        except (archive.ArchiveError, ArchiveMissingError, BooksBusyError, ValueError) as error:
            raise CommandError(str(error)) from error
