"""``manage.py restore``: a backup back into the home and database that the settings name, ending in `reconcile`."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.models import ArchivedMonth, Reconciliation
from billing.seals.archived import faults
from operation.backup.archive import BackupError
from operation.backup.service import restore
from operation.serve.processes import stopped_by_exit
from operation.setup.steps import Steps


class Command(BaseCommand):
    """Restore a backup, bring its tables up to date, and check the books; nothing may run on the home meanwhile."""

    help = "Restore a backup, then reconcile. Stop everything first."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("archive", type=Path, help="the file that `backup` made")
        parser.add_argument("--replace", action="store_true", help="give up what the database holds now")

    def handle(self, *args: Any, **options: Any) -> None:
        show = Steps(sys.stderr)
        try:
            with stopped_by_exit("stopped: run it again"):
                done = restore(options["archive"].resolve(), show, replace=options["replace"])
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"in place: the backup of {done.manifest.made_at}, made by Sluice {done.manifest.sluice}")
        if done.former is not None:
            self.stdout.write(f"the former database is {done.former}: delete it when nobody misses it")
        if done.files:
            self.stdout.write(f"tenants' files and adapters put back: {done.files}")
        for name in done.kept:
            self.stdout.write(f"{name} stays as it was: it knows more than its copy")
        for variable, path in done.unset.items():
            self.stdout.write(f"TO DO before the start: {variable} differs; set {variable}_FILE={path}, or its content")
        if done.open_holds:
            self.stdout.write(f"{done.open_holds} requests ran at that time: gateways settle them when they start")
        for fault in faults(ArchivedMonth.objects.all(), missing=True):
            self.stdout.write(f"TO DO: {fault}")
        told = StringIO()
        try:
            with show.step("checking the books"):
                Reconciliation.objects.filter(is_running=True).delete()  # it ran as the backup was made
                call_command("reconcile", "--whole", stdout=told)
        finally:
            self.stdout.write(told.getvalue(), ending="")
