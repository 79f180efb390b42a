"""``manage.py calibrate DEPLOYMENT``: what its tokens cost the operator, by measurement, and the card that follows."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import reverse

from base import clock
from base.errors import ServiceError
from base.units import format_credits, parse_credits
from billing import costs
from billing.costs import CostRates, DevicePrice, Fit, Proposal
from billing.models import CostSample
from billing.rating import WHOLE_BP, CardPrices
from billing.selectors.prices import prices_at
from billing.services import cards
from billing.services.errors import CardError
from fleet.calibration import Measured, measure
from gateway.runtime.engines import spec_of
from routing import catalogue
from routing.catalogue import DeploymentEntry, ReplicaEntry

TERM_WORDS = {
    "input": "a token of the prompt",
    "input_context": "and for each 1,000 tokens that its prompt has",
    "output": "a token of the answer",
    "output_context": "and for each 1,000 tokens before it",
    "cached": "a cached token",
    "request": "a request",
}
RECOVERY_PERCENT = 25
"""A fit whose held-out mix is further off is not kept."""


def _credits(text: str) -> int:
    try:
        return parse_credits(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


class Command(BaseCommand):
    """Measure a deployment with a designed mix of requests, fit its costs, and propose prices; nobody is charged.

    Nothing is published unless `--publish` is confirmed: the page of the price list shows the proposal beside the
    prices in force.
    """

    help = "Measure what a deployment's tokens cost, and propose prices."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("deployment", help="its name: see `manage.py models list`")
        parser.add_argument("--node", default="", help="the replica on that node; the first if not given")
        parser.add_argument(
            "--device-hour", type=_credits, required=True, metavar="CREDITS", help="what an hour of the device costs"
        )
        parser.add_argument("--watts", type=float, default=0.0, help="that it draws when busy, beside that price")
        parser.add_argument("--kwh", type=_credits, default=0, metavar="CREDITS", help="what a kilowatt-hour costs")
        parser.add_argument(
            "--utilisation", type=float, default=0.6, help="part of all hours in which it is expected to be busy (0.6)"
        )
        parser.add_argument("--margin", type=float, default=1.25, help="prices over costs (1.25)")
        parser.add_argument("--concurrency", type=int, default=4, help="requests at a time: the operating point (4)")
        parser.add_argument("--longest", type=int, default=2048, metavar="TOKENS", help="longest prompt (2048)")
        parser.add_argument("--answer", type=int, default=64, metavar="TOKENS", help="longest answer (64)")
        parser.add_argument(
            "--repeats", type=int, default=1, help="measure each window so often (1): where others run, 3"
        )
        parser.add_argument("--device", default="", help="the device in words, kept with the result")
        parser.add_argument("--dry-run", action="store_true", help="keep nothing")
        parser.add_argument(
            "--keep", action="store_true", help=f"keep a fit that is more than {RECOVERY_PERCENT} %% off, too"
        )
        parser.add_argument("--publish", action="store_true", help="publish the proposed prices once that is confirmed")
        parser.add_argument("--yes", action="store_true", help="with --publish: don't ask")

    def handle(self, *args: Any, **options: Any) -> None:
        if min(options[name] for name in ("concurrency", "longest", "answer", "repeats")) < 1:
            raise CommandError("--concurrency, --longest, --answer and --repeats are at least 1")
        deployment, replica = _found(options["deployment"], options["node"])
        card = catalogue.load().models[deployment.model].rate_card
        try:
            hour = options["device_hour"] + round(options["watts"] / 1000 * options["kwh"])
            price = DevicePrice(hour, round(options["utilisation"] * WHOLE_BP), round(options["margin"] * WHOLE_BP))
        except ValueError as error:
            raise CommandError(f"--{error}") from error
        self.stdout.write(f"measuring {deployment.name} at {options['concurrency']} requests at a time")
        try:
            measured = measure(
                spec_of(deployment, replica),
                concurrency=options["concurrency"],
                longest=options["longest"],
                answer=options["answer"],
                repeats=options["repeats"],
                tell=self._tell,
            )
        except ServiceError as error:
            raise CommandError(f"{deployment.name}: {error.message}") from error
        fit = costs.fit(measured.fitted)
        recovery = fit.recovery(measured.held_out)
        rates = CostRates.of(fit.seconds, price)
        current = prices_at(clock.now()).get(card)
        proposal = costs.proposed(
            rates, price.margin_bp, measured.reach, with_cached=measured.tells_cached, current=current
        )
        self._show_fit(fit, measured, recovery)
        self._show_price(measured, rates, price)
        self._show_card(card, proposal, current)
        if options["dry_run"]:
            self.stdout.write("nothing is kept: --dry-run")
            return
        if abs(recovery - 1) * 100 > RECOVERY_PERCENT and not options["keep"]:
            raise CommandError(
                f"the fit makes {recovery:.0%} of the held-out mix's time, so it is not kept: measure again where less "
                "else runs, or give --keep"
            )
        sample = CostSample.objects.create(
            deployment=deployment.id,
            name=deployment.name,
            model=deployment.model,
            card=card,
            device=(options["device"] or measured.device)[:200],
            point={
                "concurrency": options["concurrency"],
                "reach": measured.reach,
                "measured_by": measured.method,
                "node": replica.place,
                "revision": measured.info.revision,
                "alone": round(measured.alone.seconds / max(fit.of(measured.alone.terms), 1e-12), 3),
                "busy": round(measured.busy / measured.wall, 4),
                "windows": len(measured.fitted),
            },
            seconds=dict(zip(costs.TERMS, fit.seconds, strict=True)),
            rates=asdict(rates),
            price=asdict(price),
            proposal={"tiers": {str(at): tier for at, tier in proposal.tiers.items()}, "fee": proposal.request_fee},
            residual=fit.residual,
            recovery=recovery,
        )
        self.stdout.write(f"kept as {sample.pk}: requests from now on have a cost, and pages their margin")
        self._publish(card, proposal, current, options)

    def _tell(self, line: str) -> None:
        self.stdout.write(f"  {line}")

    def _show_fit(self, fit: Fit, measured: Measured, recovery: float) -> None:
        self.stdout.write("busy time, fitted:")
        for name, seconds in zip(costs.TERMS, fit.seconds, strict=True):
            shown = seconds * 1e6 * (1000 if name.endswith("_context") else 1)
            self.stdout.write(f"  {shown:14,.3f} µs  {TERM_WORDS[name]}")
        if not measured.tells_cached:
            self.stdout.write("  the engine told no cached tokens: their price is input's")
        worst = max(fit.ratios, key=lambda ratio: abs(ratio - 1))
        self.stdout.write(
            f"residual {fit.residual:.1%} over {len(fit.ratios)} windows, the worst {worst - 1:+.1%}; "
            f"recovery of the held-out mix {recovery:.1%}"
        )
        alone = measured.alone.seconds / max(fit.of(measured.alone.terms), 1e-12)
        self.stdout.write(f"one request at a time costs {alone:.2f} times as much as at this load")
        if measured.disturbed:
            self.stdout.write(f"{measured.disturbed} windows were disturbed by others and measured again")

    def _show_price(self, measured: Measured, rates: CostRates, price: DevicePrice) -> None:
        classes = [usage.classes() for usage in measured.usages]
        cost = sum(rates.cost(one) for one in classes)
        busy = cost * price.utilisation_bp // WHOLE_BP
        self.stdout.write(
            f"busy {measured.busy:.1f} s of {measured.wall:.1f} s while it was measured "
            f"({measured.busy / measured.wall:.0%}, by {measured.method})"
        )
        self.stdout.write(
            f"an hour costs {format_credits(price.hour)} credits. The held-out mix cost {format_credits(cost)}: "
            f"{format_credits(busy)} for busy time, {format_credits(cost - busy)} for the "
            f"{1 - price.utilisation_bp / WHOLE_BP:.0%} of the hours that are expected to be idle"
        )

    def _show_card(self, card: str, proposal: Proposal, current: CardPrices | None) -> None:
        self.stdout.write(f"proposed prices of {card or 'the model'}, credits per million tokens (in force):")
        for start, tier in proposal.tiers.items():
            here = {} if current is None else current.rates_for(start)
            cells = ", ".join(
                f"{name} {format_credits(rate)} ({format_credits(here[name]) if name in here else '–'})"
                for name, rate in tier.items()
            )
            self.stdout.write(f"  from context {start:,}: {cells}")
        fee = "–" if current is None else format_credits(current.request_fee)
        self.stdout.write(f"  each request: {format_credits(proposal.request_fee)} ({fee})")

    def _publish(self, card: str, proposal: Proposal, current: CardPrices | None, options: dict[str, Any]) -> None:
        page = reverse("operate-price-new", args=[card]) + "?measured=1" if card else ""
        if not options["publish"]:
            self.stdout.write(f"publish them at {page}, or with --publish" if page else "the model has no price list")
            return
        if not card:
            raise CommandError("the model has no price list: give it one on its page, then publish")
        if current is not None and _is_same(proposal, current):
            self.stdout.write("the prices in force are within 10 % of these: nothing is published")
            return
        if not options["yes"]:
            if not sys.stdin.isatty():
                raise CommandError("nothing was published: give --yes where nobody can answer")
            self.stdout.write(f"Publish these prices of {card} from now on? Type yes: ", ending="")
            self.stdout.flush()
            if sys.stdin.readline().strip().lower() != "yes":
                raise CommandError("nothing was published")
        batch_bp = cards.DEFAULT_BATCH_BP if current is None else current.batch_bp
        try:
            cards.publish(
                card, proposal.tiers, request_fee=proposal.request_fee, batch_bp=batch_bp, note="from measured cost"
            )
        except CardError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"published: {card} costs so from now on")


def _is_same(proposal: Proposal, current: CardPrices) -> bool:
    """Whether publishing would change nothing that the proposal says."""
    rates = all(
        current.rates_for(at)[name] == rate for at, tier in proposal.tiers.items() for name, rate in tier.items()
    )
    return rates and current.request_fee == proposal.request_fee and len(current.tiers) == len(proposal.tiers)


def _found(name: str, node: str) -> tuple[DeploymentEntry, ReplicaEntry]:
    entries = {entry.name: entry for entry in catalogue.load().all_deployments()}
    entry = entries.get(name)
    if entry is None:
        known = ", ".join(sorted(entries)) or "none"
        raise CommandError(f"there is no active deployment {name!r}; there are: {known}")
    replicas = [one for one in entry.replicas if node in {"", one.place}]
    if not replicas:
        places = ", ".join(one.place for one in entry.replicas) or "nowhere"
        raise CommandError(f"{name} has no replica on {node or 'an active node'}; it is served on: {places}")
    return entry, replicas[0]
