"""``manage.py refund REQUEST --reason TEXT [--amount CREDITS] [--key KEY]``: give back what a request was charged."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.ids import request_id_in
from base.units import format_credits, parse_credits
from billing.services import credits
from billing.services.errors import CreditError


class Command(BaseCommand):
    """Refund a request in whole or part; with the same `--key` only once."""

    help = "Give back what a request was charged, in whole or part, to the grants that paid it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("request", help="its id in any form, such as chatcmpl-…")
        parser.add_argument("--reason", required=True, help="stands in the ledger and in the audit trail")
        parser.add_argument("--amount", help="credits; left out: all that it is still charged")
        parser.add_argument("--key", help="makes repeating it harmless; left out: the request's own, for one refund")

    def handle(self, *args: Any, **options: Any) -> None:
        request = request_id_in(options["request"])
        if request is None:
            raise CommandError(f"request: {options['request']!r} is no request's id")
        try:
            amount = None if options["amount"] is None else parse_credits(options["amount"])
            taken = credits.refund_request(
                request=request,
                amount=amount,
                key=options["key"] or f"refund:{request}",
                actor="manage.py refund",
                reason=options["reason"],
            )
        except (CreditError, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{format_credits(taken)} credits are given back")
