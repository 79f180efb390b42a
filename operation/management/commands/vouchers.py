"""``manage.py vouchers create|list|withdraw``: codes that tenants redeem for credit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Q, Sum

from base.errors import ServiceError
from base.units import format_credits, format_money, parse_credits, parse_money
from billing.models import VoucherBatch
from billing.services import vouchers


class Command(BaseCommand):
    """Make vouchers and print their codes, list the batches, or withdraw a code or all of a batch."""

    help = "Make, list and withdraw vouchers."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="print new codes, one a line: nobody can print them again")
        create.add_argument("credits", help="what each redemption gives, such as 500 or 12.5")
        create.add_argument("--note", required=True, help="what they are for")
        create.add_argument("--count", type=int, default=1, help="how many codes (default 1)")
        create.add_argument("--uses", type=int, default=1, help="how many tenants may redeem each (default 1)")
        create.add_argument("--valid-until", metavar="MOMENT", help="until when, in ISO 8601; UTC without an offset")
        create.add_argument("--credit-days", type=int, help="days for which the credit lasts (default: no end)")
        create.add_argument("--paid", metavar="MONEY", help='money paid for each redemption, such as "49.90 EUR"')
        verbs.add_parser("list", help="list the batches, newest first")
        withdraw = verbs.add_parser("withdraw", help="let a code, or all of a batch, be redeemed no more")
        withdraw.add_argument("what", help="a code, or the id of a batch")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            {"create": self._create, "list": self._list, "withdraw": self._withdraw}[options["verb"]](options)
        except ServiceError as error:
            raise CommandError(f"{error.field}: {error.message}" if error.field else error.message) from error
        except ValueError as error:
            raise CommandError(str(error)) from error

    def _create(self, options: dict[str, Any]) -> None:
        paid, currency = (None, "") if options["paid"] is None else parse_money(options["paid"])
        until = None
        if options["valid_until"] is not None:
            until = datetime.fromisoformat(options["valid_until"])
            until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        _, codes = vouchers.make(
            key=f"command:{uuid4()}",
            count=options["count"],
            note=options["note"],
            amount=parse_credits(options["credits"]),
            made_by="",
            paid_amount=paid,
            currency=currency,
            uses=options["uses"],
            valid_until=until,
            credit_days=options["credit_days"],
        )
        self.stdout.write("\n".join(codes))

    def _list(self, options: dict[str, Any]) -> None:
        withdrawn = Count("vouchers", filter=Q(vouchers__withdrawn_at__isnull=False))
        found = VoucherBatch.objects.annotate(
            codes=Count("vouchers"), used=Sum("vouchers__used"), withdrawn=withdrawn
        ).order_by("-id")
        for one in found.iterator():
            paid = "promotional" if one.paid_amount is None else format_money(one.paid_amount, one.currency)
            until = "" if one.valid_until is None else f", until {one.valid_until:%Y-%m-%d %H:%M}"
            self.stdout.write(
                f"{one.pk}  {one.note}: {one.codes} codes of {format_credits(one.amount)} credits ({paid}){until}; "
                f"used {one.used} of {one.codes * one.uses}, {one.withdrawn} withdrawn"
            )

    def _withdraw(self, options: dict[str, Any]) -> None:
        code = vouchers.find(options["what"])
        chosen = [code] if code is not None else vouchers.of_batch(options["what"])
        if not chosen:
            raise CommandError(f"{options['what']!r} is neither a code nor the id of a batch with codes")
        done = sum(map(vouchers.withdraw, chosen))
        self.stdout.write(f"withdrawn: {done}")
