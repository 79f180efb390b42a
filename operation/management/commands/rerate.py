"""``manage.py rerate --since TIME …``: the requests of a time rated by other prices, as a what-if or for real."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from base.units import format_credits
from billing.models import RateCardVersion, Rerating
from billing.selectors.reratings import differences
from billing.services import reratings
from billing.services.errors import RerateError
from routing.services.catalogue import cards_of_models
from tenancy.models import Tenant


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _basis_points(text: str) -> int:
    try:
        found = Decimal(text) * 10_000
    except InvalidOperation:
        raise ValueError(text) from None
    if found != int(found):
        raise ValueError("at most four decimals")
    return int(found)


class Command(BaseCommand):
    """Begin a run, do it here chunk by chunk, and print what it came to. A run that was cut off goes on in the periodic
    work; beside that, it is done once all the same.
    """

    help = "Rate requests again by other prices: what it would come to, or with --commit for real."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--since", type=_moment, required=True, metavar="TIME", help="UTC, as 2026-10-01T00:00")
        parser.add_argument("--until", type=_moment, metavar="TIME", help="left out: until ten minutes ago")
        parser.add_argument("--tenant", action="append", default=[], metavar="SLUG", help="only of this tenant")
        parser.add_argument("--model", action="append", default=[], metavar="NAME", help="only for this model")
        prices = parser.add_mutually_exclusive_group()
        prices.add_argument("--card", metavar="NAME", help="by the last published version of this price list")
        prices.add_argument("--card-version", type=UUID, metavar="ID", help="by this published version")
        prices.add_argument("--by-model", action="store_true", help="by each model's own price list as of the request")
        parser.add_argument(
            "--multiplier", nargs=2, type=_basis_points, metavar=("WAS", "NEW"), help="of those that had WAS, as 1 0.8"
        )
        parser.add_argument("--commit", action="store_true", help="for real; without it nothing changes")
        parser.add_argument("--reason", default="", help="with --commit: stands in the ledger, for the tenants too")
        parser.add_argument(
            "--shadow", action="store_true", help="go on beside the real prices until the list's next version"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        version = self._version(options)
        try:
            run = reratings.ask(
                reratings.Terms(
                    since=options["since"],
                    until=options["until"],
                    tenants=self._tenants(options["tenant"]),
                    models=options["model"],
                    card=version.card.name if version else "",
                    version=version,
                    cards=cards_of_models() if options["by_model"] else {},
                    multiplier=tuple(options["multiplier"]) if options["multiplier"] else None,
                    follows=options["shadow"],
                ),
                commit=options["commit"],
                asked_by="manage.py rerate",
                reason=options["reason"],
            )
        except RerateError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"run {run.pk}")
        while run.ended_at is None and reratings.step(run):
            self.stdout.write(f"{run.looked} of about {run.total} requests")
        self._tell(run)

    def _tell(self, run: Rerating) -> None:
        if run.ended_at is None:
            self.stdout.write("it goes on in the periodic work: what runs now, or came in just now, isn't settled yet")
        for by in ("model", "tenant", "usage_class"):
            for one in differences(run, by):
                was, then = format_credits(one.before), format_credits(one.after)
                self.stdout.write(f"{by} {one.name}: {was} → {then}")
        self.stdout.write(
            f"{run.counted} requests, {run.changed} at another price, {run.left} estimates left:"
            f" {format_credits(run.before)} → {format_credits(run.after)} credits"
        )

    def _version(self, options: dict[str, Any]) -> RateCardVersion | None:
        rows = RateCardVersion.objects.filter(published_at__isnull=False).select_related("card")
        if options["card_version"]:
            version = rows.filter(pk=options["card_version"]).first()
            if version is None:
                raise CommandError(f"--card-version: {options['card_version']} is no published version")
            return version
        if not options["card"]:
            return None
        found = rows.filter(card__name=options["card"]).order_by("-effective_from").first()
        if found is None:
            raise CommandError(f"--card: {options['card']!r} has no published prices")
        return found

    def _tenants(self, slugs: list[str]) -> list[Any]:
        found = dict(Tenant.objects.filter(slug__in=slugs).values_list("slug", "pk"))
        if unknown := [slug for slug in slugs if slug not in found]:
            raise CommandError(f"--tenant: there is no tenant {unknown[0]!r}")
        return [found[slug] for slug in slugs]
