"""``manage.py quickstart``: from nothing to a gateway that can be served, as often as wanted."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.errors import ServiceError
from fleet import local_models
from gateway.logs import for_reader
from operation.serve.address import address_of, usual_address
from operation.serve.gateways import ports_problem
from operation.setup import moved_home
from operation.setup.steps import Steps, told, welcome

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Do what `setup` does, install the first models, make the demo tenant; print how to begin, or serve."""

    help = "Set everything up for a first run (idempotent)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=None, help="the port that `serve` listens on")
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        parser.add_argument("--serve", action="store_true", help="then become `serve`, which says how to begin")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.SLUICE_ENV == "production":
            raise CommandError(
                "quickstart makes demo credentials: in production use setup, createsuperuser, models add"
            )
        quiet, port = options["json"], options["port"] or 8000
        if options["serve"] and (problem := ports_problem("127.0.0.1", port, 1)):
            raise CommandError(problem)  # before anything that takes long
        call_command("setup", steps=not quiet, verbosity=0)
        with Steps(sys.stderr if quiet else sys.stdout).step("first models"):
            missing = _missing_models()
        for line in missing:
            if sys.stdout.isatty():
                self.stdout.write(for_reader(line))
            else:
                log.warning(line)
        if options["serve"]:
            manage = str(Path(settings.BASE_DIR) / "manage.py")
            serve = [sys.executable, manage, "serve", "--welcome", "--port", str(port)]
            self.stdout.flush()
            os.execv(sys.executable, serve)  # noqa: S606 - ours
        facts = welcome(address_of("127.0.0.1", options["port"]) if options["port"] else usual_address())
        self.stdout.write(json.dumps(asdict(facts)) if quiet else told(facts))


def _missing_models() -> list[str]:
    """Install the first models and return a line for each that can't be had."""
    try:
        first = local_models.add_first_models()
        moved_home.take_over()  # what a former home has, and this one only has since then
    except ServiceError as error:
        return [f"there are no first models: {error}; make room there, then run this again"]
    return [f"first model {name} is missing: {why}" for name, why in first.missing.items()]
