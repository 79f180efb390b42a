"""``manage.py statement TENANT YYYY-MM``: a tenant's month as a file, a draft while it isn't over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.seals.archived import ArchiveMissingError
from billing.statements.months import NoStatementError, month_of, parsed
from control.screens.statements import FORMATS, pieces
from tenancy.models import Tenant


class Command(BaseCommand):
    """Write a statement to a file or to standard output; `billing/verify/sluice_verify.py` verifies the JSON lines."""

    help = "Write the statement of a tenant's month: to verify, as CSV, as FOCUS or as a page."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the tenant, the month, and the form of the file."""
        parser.add_argument("tenant", metavar="TENANT", help="its short name")
        parser.add_argument("month", metavar="YYYY-MM")
        parser.add_argument("--format", choices=FORMATS, default="jsonl", help="jsonl (to verify) unless given")
        parser.add_argument("--output", metavar="FILE", help="standard output unless given")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write it."""
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            raise CommandError(f"TENANT: there is no {options['tenant']!r}: `manage.py tenants list` shows them")
        try:
            month = month_of(tenant.pk, parsed(options["month"]))
        except (NoStatementError, ValueError) as error:
            raise CommandError(str(error)) from error
        try:
            made = pieces(tenant, month, options["format"])
        except ArchiveMissingError as error:
            raise CommandError(str(error)) from error
        if options["output"] is None:
            for piece in made:
                sys.stdout.buffer.write(piece)
            return
        draft = Path(f"{options['output']}.draft")
        with draft.open("wb") as file:
            for piece in made:
                file.write(piece)
        draft.replace(options["output"])
