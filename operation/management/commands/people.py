"""``manage.py people export|erase EMAIL``: everything of a person as an archive, or gone."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from operation.management.life import add_verbs, peoples_verb


class Command(BaseCommand):
    """Export a person, or erase them."""

    help = "Export and erase people."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add_verbs(verbs, "person", "EMAIL")

    def handle(self, *args: Any, **options: Any) -> None:
        peoples_verb(self, options)
