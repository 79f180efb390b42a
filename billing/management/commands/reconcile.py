"""``manage.py reconcile``: check that all rows of credit agree."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils import timezone

from billing import reconcile


class Command(BaseCommand):
    """Print every finding; exit 1 when there is one."""

    help = "Check that wallets, holds, grants, transfers and usage records agree, and that their guards are in place."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take how far back charges are rated again, and whether all seals are checked."""
        parser.add_argument("--days", type=int, help="rate again only the usage of the last DAYS days")
        parser.add_argument("--seals", action="store_true", help="compute every sealed day's root again from its rows")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the checks."""
        days = options["days"]
        since = None if days is None else timezone.now() - timedelta(days=days)
        findings = reconcile.check(connection, since=since, all_seals=options["seals"])
        for finding in findings:
            self.stdout.write(f"{finding.check} {finding.subject}: {finding.detail}")
        if findings:
            raise CommandError(f"{len(findings)} findings")
        self.stdout.write("the books are right")
