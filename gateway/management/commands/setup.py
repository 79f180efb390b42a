"""``manage.py setup``: what every installation needs before it can serve, in production too."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from billing.services import cards, plans
from gateway.home import close_to_others
from gateway.services import roles


class Command(BaseCommand):
    """Migrate (which installs the triggers); ship plans, prices, operators' roles; collect static files; idempotent."""

    help = "Bring the database, plans, price lists and static files up to date."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        close_to_others()
        call_command("migrate", verbosity=0, interactive=False)
        call_command("collectstatic", verbosity=0, interactive=False)
        plans.ensure_default_plans()
        cards.ensure_default_cards()
        roles.ensure_roles()
        if options["verbosity"]:
            self.stdout.write("database, plans, price lists and static files are up to date")
