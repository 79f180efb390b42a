"""``manage.py keys create NAME --tenant SLUG``: an API key, or an admin key, whose secret is shown once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from base.errors import ServiceError
from tenancy.models import Project, Tenant
from tenancy.services.admin_keys import create_admin_key
from tenancy.services.keys import DEFAULT_SCOPES, create_key
from tenancy.services.restrictions import Restrictions

_ARGUMENTS = {
    "name": "NAME",
    "scopes": "--scope",
    "expires_at": "--days",
    "allowed_models": "--model",
    "networks": "--network",
    "project": "--project",
}


class Command(BaseCommand):
    """Create a key for one of a tenant's projects. Its secret alone is on standard output, and is stored nowhere."""

    help = "Create API keys and admin keys."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="create a key; prints its secret, once")
        create.add_argument("name", help="by which people tell it from others")
        create.add_argument("--tenant", required=True, metavar="SLUG")
        create.add_argument("--project", default="Default", help="the project's name (Default)")
        create.add_argument("--scope", action="append", help="what it may do (inference); may be given several times")
        create.add_argument("--model", action="append", default=[], help="a model that it may use; without one, all")
        create.add_argument("--network", action="append", default=[], help="a network that it works from; without, any")
        create.add_argument("--days", type=int, help="days after which it ends; without them never")
        admin = "an admin key, for tools that manage the whole tenant: it has no project, scopes, models or networks"
        create.add_argument("--admin", action="store_true", help=admin)

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"], is_active=True).first()
        if tenant is None:
            raise CommandError(
                f"--tenant: no active tenant is called {options['tenant']!r}: see `manage.py tenants list`"
            )
        given = [name for name in ("scope", "model", "network") if options[name]]
        if options["admin"] and given:
            raise CommandError(f"--{given[0]}: an admin key has none; leave out --admin for a key that is limited")
        try:
            secret = self._made(tenant, options)
        except ServiceError as error:
            field = _ARGUMENTS.get(error.field, error.field)
            raise CommandError(f"{field}: {error.message}" if field else error.message) from error
        self.stderr.write(
            f"{'admin key' if options['admin'] else 'key'} {options['name']} of {tenant.slug}, shown once:"
        )
        self.stdout.write(secret)

    def _made(self, tenant: Tenant, options: dict[str, Any]) -> str:
        """Return the new key's secret."""
        days = options["days"]
        expires_at = None if days is None else timezone.now() + timedelta(days=days)
        if options["admin"]:
            return create_admin_key(tenant=tenant, name=options["name"], expires_at=expires_at)[1]
        project = Project.objects.of(tenant).filter(name=options["project"], is_active=True).first()
        if project is None:
            names = Project.objects.of(tenant).filter(is_active=True).order_by("name").values_list("name", flat=True)
            raise ServiceError("project", f"No such project. There are: {', '.join(names)}.")
        return create_key(
            tenant=tenant,
            project=project,
            name=options["name"],
            scopes=options["scope"] or DEFAULT_SCOPES,
            expires_at=expires_at,
            restrictions=Restrictions(tuple(options["model"]), tuple(options["network"])),
        )[1]
