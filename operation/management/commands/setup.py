"""``manage.py setup``: what every installation needs before it can serve, in production too."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.database.connections import keep_limits
from base.home import close_to_others
from billing.seals import keys as seal_keys
from billing.services import cards, plans
from fleet import remote_models
from operation import schema
from operation.setup import former_migrations, moved_home
from operation.setup.steps import Steps
from routing.services.defaults import ensure_default_routes
from tenancy.services import hooks, mail, roles


class Command(BaseCommand):
    """Migrate (which installs the triggers); ship plans, prices, operators' roles; collect static files; idempotent."""

    help = "Bring the database, plans, price lists and static files up to date."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--steps", action="store_true", help="on a terminal, show each step with its time")
        beside = "migrate beside gateways that serve, of this release or the one before (PostgreSQL)"
        parser.add_argument("--while-serving", action="store_true", help=beside)

    def handle(self, *args: Any, **options: Any) -> None:
        show = Steps(sys.stdout) if options["steps"] or options["verbosity"] else Steps(StringIO())
        with show.step("database"):
            close_to_others()
            self._migrate(while_serving=options["while_serving"])
        with show.step("static files"):
            call_command("collectstatic", verbosity=0, interactive=False)
        with show.step("plans and prices"):
            plans.ensure_default_plans()
            cards.ensure_default_cards()
            ensure_default_routes()
        with show.step("roles of operators"):
            roles.ensure_roles()
        moved = moved_home.take_over()
        for name in remote_models.reseal_credentials():
            self.stderr.write(f"the API key of deployment {name} was stored under another secret: enter it again")
        for address in hooks.reseal():
            self.stderr.write(f"the secret of the web-hook {address} was stored under another one: make it anew")
        for key in seal_keys.reseal():
            self.stderr.write(f"{key} of the seals was stored under another secret: give that as a fallback")
        if count := mail.send_unread_mail():
            self.stdout.write(f"mails whose text can be read again, and which are sent now: {count}")
        if options["verbosity"]:
            if moved:
                self.stdout.write(f"deployments whose model is taken from this home now: {', '.join(moved)}")
            self.stdout.write("database, plans, price lists and static files are up to date")

    def _migrate(self, *, while_serving: bool) -> None:
        """Migrate the database alone, or while gateways serve; where nothing is due they may in any case."""
        found = schema.look()
        if found.problem and not found.is_due:
            raise CommandError(str(found), returncode=found.code)
        with schema.alone(while_serving=while_serving) if found.is_due else nullcontext():
            former_migrations.take_over()
            call_command("migrate", verbosity=0, interactive=False, stderr=self.stderr)
            keep_limits()
