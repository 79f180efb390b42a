"""``manage.py seals keys|rotate``: the keys by which the seals of tenants' days are signed."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing.seals import keys


class Command(BaseCommand):
    """Print the public keys as PEM, or replace the one that signs; those that were replaced stay public."""

    help = "Show or replace the keys that sign the seals of tenants' days."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what to do."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("keys", help="print the public keys, the one that signs last")
        verbs.add_parser("rotate", help="make a new key, which the one before vouches for")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        if options["verb"] == "rotate":
            made = keys.rotate()
            self.stderr.write(f"{made} signs from now on; give tenants its PEM, or have them take it from the API.")
        for key in keys.public_keys():
            self.stdout.write(f"# {key}, since {keys.text_of(key.since)}\n{keys.pem_of(key)}", ending="")
