"""``manage.py reconcile``: check that the rows of credit agree."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.selectors.reconciliation import last_whole
from billing.services.reconciliation import LOST_AFTER, reconcile_if_due

WAIT_S = 0.5


class Command(BaseCommand):
    """Print every finding; exit 1 when there is one."""

    help = (
        "Check that wallets, holds, grants, transfers and usage records agree, and that their guards are in place: "
        "what came since the last check that found nothing, or all."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take how much is checked."""
        parser.add_argument("--whole", action="store_true", help="check all rows, whenever they were booked")
        seals = "check all rows, and compute every sealed day's root again from them"
        parser.add_argument("--seals", action="store_true", help=seals)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the checks."""
        wanted = partial(reconcile_if_due, timedelta(0), whole=options["whole"], all_seals=options["seals"])
        if (run := wanted()) is None:
            given_up = f"{LOST_AFTER.seconds // 3600} hours after it was seen last it is given up"
            self.stderr.write(f"another check is running, and this one begins when it is over: {given_up}")
            while (run := wanted()) is None:
                time.sleep(WAIT_S)
        for one in run.findings:
            self.stdout.write(f"{one['check']} {one['subject']}: {one['detail']}")
        if run.found:
            raise CommandError(f"{run.found} findings, the first {len(run.findings)} of them above")
        if not run.is_whole:
            whole = last_whole()
            ended = (
                "none was" if whole is None or whole.finished_at is None else f"{whole.finished_at:%Y-%m-%d %H:%M} UTC"
            )
            self.stdout.write(f"what came since the last check is right; all was checked last: {ended}")
        self.stdout.write("the books are right")
