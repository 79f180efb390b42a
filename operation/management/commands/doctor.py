"""``manage.py doctor``: what works, what doesn't, and how to mend that."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError

from base.checks import Result
from gateway.runtime.observed import leave_canaries
from operation.checks.checks import examine
from operation.schema import database_problem


class Command(BaseCommand):
    """Make all checks now and print what each found; exit with 1 when something is to be mended."""

    help = "Say what is configured, what is reachable, and how to mend what is not."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-url", default="", help="where the gateway is asked; else where this home's runs")
        parser.add_argument("--json", action="store_true", help="one JSON object a check, a line each")
        accept = "go on with the secrets of now, where others were in use before and are lost"
        parser.add_argument("--accept-secrets", action="store_true", help=accept)

    def handle(self, *args: Any, **options: Any) -> None:
        if not database_problem():
            try:
                leave_canaries(anew=options["accept_secrets"])
            except DatabaseError as error:  # the checks below tell why
                self.stderr.write(f"the database takes no proof of the secrets: {' '.join(str(error).split())}")
        tell = self._tell_json if options["json"] else self._tell
        ill = False
        for result in examine(options["base_url"].rstrip("/")):
            tell(result)
            ill = ill or not (result.is_fine or result.lacks)
        if ill:
            sys.exit(1)

    def _tell(self, result: Result) -> None:
        if result.lacks:
            self.stdout.write(f"-     {result.check.name}: not looked at while {result.lacks} fails")
        for finding in result.findings:
            subject = " ".join(filter(None, (result.check.name, finding.subject)))
            self.stdout.write(f"{'ok  ' if finding.is_fine else 'MEND'}  {subject}: {finding.text}")
            if not finding.is_fine:
                self.stdout.write(f"      → {finding.mend}")

    def _tell_json(self, result: Result) -> None:
        check, state = result.check, "ok" if result.is_fine else "not looked at" if result.lacks else "failing"
        findings = [{"subject": one.subject, "text": one.text, "mend": one.mend} for one in result.findings]
        told = {"check": check.name, "severity": check.severity, "proves": check.proves, "state": state}
        self.stdout.write(json.dumps({**told, "findings": findings}))
