"""``manage.py tenants export|erase NAME``: everything of a tenant as an archive, or gone."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from operation.management.life import add_verbs, tenants_verb


class Command(BaseCommand):
    """Export a tenant, or erase it; its books stay."""

    help = "Export and erase tenants."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add_verbs(verbs, "tenant", "TENANT")

    def handle(self, *args: Any, **options: Any) -> None:
        tenants_verb(self, options)
