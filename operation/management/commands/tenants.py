"""``manage.py tenants create|list|export|erase``: customers, from their owner's invitation to the end of their data."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils.text import slugify

from base.errors import ServiceError
from billing.models import Plan
from operation.management.life import add_verbs, tenants_verb
from tenancy.models import Tenant
from tenancy.services import members, tenants

_ARGUMENTS = {"name": "NAME", "slug": "--slug", "plan": "--plan", "email": "--owner"}


class Command(BaseCommand):
    """Create a tenant as the admin does, list them, export one, or erase one, whose books stay.

    The owner's link works once: it alone is on standard output.
    """

    help = "Create, list, export and erase tenants."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="create a tenant; prints the link by which its owner signs up")
        create.add_argument("name")
        create.add_argument("--plan", required=True, help="the short name of a plan that is offered, such as free")
        create.add_argument("--owner", required=True, metavar="EMAIL", help="gets the invitation by mail too")
        create.add_argument("--slug", help="its short name in links and commands; made from the name unless given")
        verbs.add_parser("list", help="short names, names and plans")
        add_verbs(verbs, "tenant", "TENANT")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "list":
                self._list()
            case "create":
                self._create(options)
            case _:
                tenants_verb(self, options)

    def _create(self, options: dict[str, Any]) -> None:
        slug = options["slug"] or slugify(options["name"])
        try:
            with transaction.atomic():
                made = tenants.create_tenant(
                    name=options["name"], slug=slug, owner_email=options["owner"], plan=options["plan"]
                )
                members.send_invitation(invitation=made.invitation, address=made.invitation_address)
        except ServiceError as error:
            offered = Plan.objects.filter(is_offered=True).order_by("slug").values_list("slug", flat=True)
            choices = (
                f" Offered: {', '.join(offered) or 'none, run `manage.py setup`'}." if error.field == "plan" else ""
            )
            raise CommandError(f"{_ARGUMENTS[error.field]}: {error.message}{choices}") from error
        self.stderr.write(
            f"tenant {made.tenant.slug} has the plan {options['plan']}; {options['owner']} is invited by:"
        )
        self.stdout.write(made.invitation_address)

    def _list(self) -> None:
        for tenant in Tenant.objects.prefetch_related("subscriptions__version__plan").order_by("slug"):
            plans = [one.version.plan.slug for one in tenant.subscriptions.all() if one.state == one.State.ACTIVE]
            state = "" if tenant.is_active else "  inactive"
            self.stdout.write(f"{tenant.slug}  {tenant.name}  {', '.join(plans) or 'no plan'}{state}")
