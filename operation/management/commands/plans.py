"""``manage.py plans include PLAN MODEL…``: more models for a plan."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.services.errors import PlanError
from billing.services.plan_models import include_models, move_subscribers
from routing.models import PublicModel


class Command(BaseCommand):
    """Publish a version of a plan that includes more models; tenants keep theirs unless `--subscribers` moves them."""

    help = "Include models in a plan."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        include = verbs.add_parser("include", help="publish a version of a plan that includes more models")
        include.add_argument("plan", help="its short name, such as free")
        include.add_argument("models", nargs="+", metavar="model")
        include.add_argument(
            "--subscribers",
            action="store_true",
            help="move tenants that have the plan to it at once, if nothing else of their terms changes",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        slug, names = options["plan"], options["models"]
        known = set(PublicModel.objects.filter(name__in=names, tenant=None).values_list("name", flat=True))
        if unknown := [name for name in names if name not in known]:
            raise CommandError(f"there is no model {unknown[0]!r}")
        try:
            version = include_models(slug, names)
        except PlanError as error:
            raise CommandError(str(error)) from error
        listed = ", ".join(version.allowed_models) or "all models"
        self.stdout.write(f"version {version.number} of {slug} includes {listed}; new subscribers get it")
        if not options["subscribers"]:
            self.stdout.write("who has the plan keeps the version that it has: --subscribers moves them")
            return
        moved, stay = move_subscribers(slug)
        self.stdout.write(f"tenants moved to it: {moved}")
        if stay:
            self.stdout.write(
                f"tenants that keep an older version, since other terms differ or a change is scheduled: {stay}"
            )
