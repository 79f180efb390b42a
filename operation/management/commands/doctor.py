"""``manage.py doctor``: what is configured, what is reachable, how to mend what is not."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from operation.doctor.doctor import examine
from operation.serve.address import running_address


class Command(BaseCommand):
    """Print one line for each thing looked at; exit with 1 when something is to be mended."""

    help = "Say what is configured, what is reachable, and how to mend what is not."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-url", help="where the gateway is asked; else where this home's runs")

    def handle(self, *args: Any, **options: Any) -> None:
        ill = 0
        for symptom in examine((options["base_url"] or running_address() or settings.SLUICE_BASE_URL).rstrip("/")):
            mark = "ok  " if symptom.is_fine else "MEND"
            self.stdout.write(f"{mark}  {symptom.subject}: {symptom.finding}")
            if not symptom.is_fine:
                self.stdout.write(f"      → {symptom.mend}")
                ill += 1
        if ill:
            sys.exit(1)
