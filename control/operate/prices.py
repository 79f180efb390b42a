"""Prices: what each model costs by class, now and soon, and new versions, published once they are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from base.units import format_credits, parse_credits
from billing.costs import CostRates, DevicePrice
from billing.models import CostSample, RateCard
from billing.rating import CLASSES, WHOLE_BP, CardPrices, own_rates
from billing.selectors.costs import busy_share, sample_of_card
from billing.selectors.plans import tenants_with_models
from billing.selectors.prices import price_changes, prices_after, prices_at, versions_of
from billing.services import cards
from billing.services.errors import CardError
from billing.services.plans import latest_versions
from control.operate.base import Desk, operator_page
from control.operate.fields import OperatorForm
from control.operate.model_states import card_of, plans_with
from control.operate.reratings import DAYS, brief
from control.operate.words import CLASS_HEADS, CLASS_WORDS
from control.screens.figures import amount, grouped, moment
from control.screens.forms import CreditsField
from control.screens.tables import Cell, Column, Row, State, Table
from routing.models import PublicModel

SHOWN = 50
MOST_NAMED = 200


def _rates(prices: CardPrices) -> list[Any]:
    """Return the cells of a price: the classes, the fee, the share that batches pay."""
    further = len(prices.tiers) - 1
    note = f"+ {further} tier{'s' * (further > 1)}" if further else ""
    cells: list[Any] = [amount(prices.tiers[0].rates[name]) for name in CLASSES]
    cells[0] = Cell(cells[0], detail=note)
    return [*cells, prices.request_fee, f"{prices.batch_bp / 100:g} %"]


_RATES = [*(Column(CLASS_HEADS[name], "credits") for name in CLASSES), Column("Request", "credits")]
_BATCH = Column("Batches", "number")


@require_safe
@operator_page("billing.view_ratecard")
def prices(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show each model's prices by class, now and soon; `after` is where the page before ended."""
    now, after = timezone.now(), request.GET.get("after", "").replace("\0", "")
    current, coming = prices_at(now), prices_after(now)
    by_card: dict[str, list[Any]] = {}
    for one in coming:
        by_card.setdefault(one.card, []).append(one)
    models = PublicModel.objects.filter(is_active=True, tenant=None).select_related("adapter__base").order_by("name")
    page = list((models.filter(name__gt=after) if after else models)[: SHOWN + 1])
    rows = []
    for model in page[:SHOWN]:
        card = card_of(model)
        found, href = current.get(card), reverse("operate-price", args=[card]) if card else ""
        if found is None:
            cell = Cell(model.name, href or reverse("operate-model-price", args=[model.pk]), card)
            rows.append(Row([cell, State("no price", "warn"), *[None] * 5, None, ""]))
        else:
            rows.append(Row([Cell(model.name, href, card if card != model.name else ""), *_rates(found)]))
        rows += [
            Row([Cell(f"from {one.effective_from:%-d %b %Y, %H:%M} UTC", href), *_rates(one.prices)], is_over=True)
            for one in by_card.get(card, ())
        ]
    used = set(PublicModel.objects.filter(is_active=True).exclude(rate_card="").values_list("rate_card", flat=True))
    older = f"?{urlencode({'after': page[SHOWN - 1].name})}" if len(page) > SHOWN else ""
    columns = [Column("Model", "name"), *_RATES, _BATCH]
    table = Table("Prices by model", columns, rows, "No model yet.", older=older, id="prices")
    idle = [name for name in sorted(current) if name not in used][:MOST_NAMED]
    context = desk.context(page="prices", table=table, idle=idle, may_publish=desk.may("billing.add_ratecardversion"))
    return render(request, "operate/prices.html", context)


@require_safe
@operator_page("billing.view_ratecard")
def price(request: HttpRequest, desk: Desk, name: str) -> HttpResponse:
    """Show one price list: its versions, and who pays by it."""
    if not RateCard.objects.filter(name=name).exists():
        raise Http404
    now = timezone.now()
    rows, is_past = [], False
    for version, found in versions_of(name):
        if version.effective_from > now:
            state = State("coming", "warn")
        else:
            state = State("past") if is_past else State("in force", "good")
            is_past = True
        begin = version.effective_from
        cell = Cell(moment(begin), detail=version.note, title=f"{begin:%Y-%m-%d %H:%M} UTC")
        rows.append(Row([cell, state, *_rates(found)], is_over=state.word == "past"))
    columns = [Column("From", "name"), Column("State", "state"), *_RATES, _BATCH]
    table = Table("Versions", columns, rows, "No version is published yet.")
    context = desk.context(
        page="prices", name=name, table=table, concerned=_concerned(name), measured=_measured(name),
        may_publish=desk.may("billing.add_ratecardversion"),
    )  # fmt: skip
    return render(request, "operate/price.html", context)


def _concerned(name: str) -> dict[str, Any]:
    """Return who pays by a price list: models, plans that have one of them, with their tenants."""
    mine = PublicModel.objects.filter(is_active=True, rate_card=name, tenant=None)
    own = PublicModel.objects.filter(is_active=True, rate_card="", adapter__base__in=mine)
    models = list(mine.order_by("name").values_list("name", "pk"))
    adapters = list(own.order_by("name").values_list("name", flat=True)[:MOST_NAMED])
    names = [model for model, _ in models]
    counts = tenants_with_models(names) if names else {}
    versions = [one for one in latest_versions() if any(plans_with(model, [one]) for model in names)]
    plans = [(one.plan, counts.get(one.plan_id, 0)) for one in versions]
    return {"models": models, "adapters": adapters, "plans": plans, "tenants": sum(counts.values())}


@dataclass(frozen=True, slots=True)
class Measured:
    """The latest calibration that proposes prices for a list, and the proposal beside what is in force."""

    sample: CostSample
    facts: list[tuple[str, str]]
    table: Table
    is_new: bool  # whether the proposal differs from what is in force


def proposal_of(sample: CostSample) -> tuple[dict[int, dict[str, int]], int]:
    """Return the rates by least context and class that a calibration proposes, and the request's fee."""
    tiers = {int(start): rates for start, rates in sample.proposal["tiers"].items()}
    return dict(sorted(tiers.items())), sample.proposal["fee"]


def _measured(name: str) -> Measured | None:
    sample = sample_of_card(name)
    if sample is None:
        return None
    now = timezone.now()
    tiers, fee = proposal_of(sample)
    price, rates, before = DevicePrice(**sample.price), CostRates(**sample.rates), prices_at(now).get(name)
    lines: list[Row] = []
    is_new = before is not None and fee != before.request_fee
    for start, proposed in tiers.items():
        after = [*tiers, sample.point["reach"]]
        middle = (start + after[after.index(start) + 1]) // 2
        costs = rates.prices(middle, WHOLE_BP, with_cached="cache_read" in proposed)
        for usage_class, rate in proposed.items():
            here = None if before is None else before.rates_for(start)[usage_class]
            is_new |= here != rate
            left = f"{100 * (here - costs[usage_class]) / here:.0f} %" if here else "–"
            cells = [CLASS_WORDS[usage_class], grouped(start), amount(costs[usage_class]), amount(here), left]
            lines.append(Row([*cells, amount(rate)]))
    own, here = -(-rates.request // 1_000_000), None if before is None else before.request_fee
    lines.append(Row(["Each request", "", amount(own), amount(here), "", amount(fee)]))
    busy = busy_share(sample, now)
    facts = [
        ("Measured", f"{sample.created_at:%-d %b %Y, %H:%M} UTC, {sample.name} on {sample.device}"),
        ("Operating point", f"{sample.point['concurrency']} requests at a time, by {sample.point['measured_by']}"),
        ("Fit", f"residual {sample.residual:.1%}, recovery of a held-out mix {sample.recovery:.1%}"),
        ("An hour of the device", f"{format_credits(price.hour)} credits"),
        (
            "Idle time",
            f"carried by a busy share of {price.utilisation_bp / 100:g} %"
            + ("" if busy is None else f"; it was {busy:.1%} since then"),
        ),
        ("Margin", f"prices are {price.margin_bp / 100:g} % of the cost"),
    ]
    columns = [
        *(Column("Class", "name"), Column("From context", "number"), Column("Cost", "number")),
        *(Column("In force", "number"), Column("Margin", "number"), Column("Proposed", "number")),
    ]
    table = Table("From measured cost, in credits per million tokens", columns, lines)
    return Measured(sample, facts, table, is_new)


# -- a new version -----------------------------------------------------------------------------------------------------

_TIER = re.compile(r"(\d+)\s*:\s*(.+)")
_HELP = "Credits per million tokens."


def _line(start: int, rates: Mapping[str, int]) -> str:
    """Return a tier as `_TIER` reads it."""
    return f"{start}: " + ", ".join(f"{name} {format_credits(rate)}" for name, rate in rates.items())


class PricesForm(OperatorForm):
    """Rates by class, other rates for long contexts, the fee, and from when on."""

    renamed = {"rates": "input"}

    input = CreditsField(help_text=_HELP)
    cache_read = CreditsField(required=False, label="Cached", help_text="Empty: as input.")
    output = CreditsField(help_text=_HELP)
    reasoning = CreditsField(required=False, help_text="Empty: as output.")
    cache_write_short = CreditsField(required=False, label="Cache write, short", help_text="Empty: as input.")
    cache_write_long = CreditsField(required=False, label="Cache write, long", help_text="Empty: as input.")
    tiers = forms.CharField(
        required=False,
        max_length=4000,
        label="Rates of long contexts",
        widget=forms.Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text="From a context length on, a line each, as: 32000: input 20, output 80",
    )
    request_fee = CreditsField(required=False, label="Each request that ran", help_text="Credits; empty: nothing.")
    batch_percent = forms.DecimalField(
        min_value=0,
        max_value=100,
        decimal_places=2,
        required=False,
        label="Batches pay",
        help_text="Per cent of these rates. Empty: half.",
    )
    effective_from = forms.DateTimeField(
        required=False,
        label="In force from",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="UTC. Empty: from now on.",
    )
    note = forms.CharField(max_length=200, required=False, help_text="Why; kept with the version.")

    FIRST = ("input", "cache_read", "output", "reasoning")
    MORE = ("cache_write_short", "cache_write_long", "tiers", "request_fee", "batch_percent")
    LAST = ("effective_from", "note")

    def clean_tiers(self) -> dict[int, dict[str, int]]:
        """Return the further tiers: least context → class → rate."""
        tiers: dict[int, dict[str, int]] = {}
        for line in filter(None, (line.strip() for line in self.cleaned_data["tiers"].splitlines())):
            found = _TIER.fullmatch(line)
            if found is None:
                raise ValidationError(f"“{line[:80]}” doesn’t read as “32000: input 20, output 80”.")
            rates = tiers.setdefault(int(found[1]), {})
            for part in found[2].split(","):
                name, _, credits = part.strip().partition(" ")
                if name not in CLASSES:
                    raise ValidationError(f"“{name[:40]}” is no class; they are {', '.join(CLASSES)}.")
                try:
                    rates[name] = parse_credits(credits)
                except ValueError as error:
                    raise ValidationError(str(error)) from error
        return tiers

    def rates(self) -> dict[int, dict[str, int]]:
        """Return all rates as typed: least context → class → µcr per million tokens."""
        base = {name: self.cleaned_data[name] for name in CLASSES if self.cleaned_data[name] is not None}
        return {**self.cleaned_data["tiers"], 0: base}

    def terms(self) -> dict[str, Any]:
        """Return fee and share of batches as the service takes them."""
        percent = self.cleaned_data["batch_percent"]
        batch = cards.DEFAULT_BATCH_BP if percent is None else int(percent * 100)
        return {"request_fee": self.cleaned_data["request_fee"] or 0, "batch_bp": batch}

    def group(self, names: Sequence[str]) -> list[forms.BoundField]:
        """Return fields by their names."""
        return [self[name] for name in names]

    @property
    def first(self) -> list[forms.BoundField]:
        """The rates that nearly every list has."""
        return self.group(self.FIRST)

    @property
    def more(self) -> list[forms.BoundField]:
        """The rates that few lists have."""
        return self.group(self.MORE)

    @property
    def last(self) -> list[forms.BoundField]:
        """From when on, and why."""
        return self.group(self.LAST)

    @property
    def has_more(self) -> bool:
        """Whether a rate that few lists have is set, or wrong."""
        return any(self[name].value() or self[name].errors for name in self.MORE)


def _initial(name: str, sample: CostSample | None = None) -> dict[str, Any]:
    """Return the last version as it would be typed, with what a `sample` proposes instead: a class that costs what its
    parent costs is left empty.
    """
    typed: dict[int, dict[str, int]] = {}
    fee, batch = 0, cards.DEFAULT_BATCH_BP
    for version, found in versions_of(name, 1):
        typed = {tier.min_context: own_rates(tier.rates) for tier in found.tiers}
        fee, batch = version.request_fee, version.batch_bp
    note = {}
    if sample is not None:
        typed, fee = proposal_of(sample)
        note = {"note": f"from cost measured on {sample.created_at:%-d %b %Y}"}
    percent = None if batch == cards.DEFAULT_BATCH_BP else batch / 100
    tiers = "\n".join(starmap(_line, ((start, rates) for start, rates in typed.items() if start)))
    return {**typed.get(0, {}), "tiers": tiers, "request_fee": fee or None, "batch_percent": percent, **note}


LIST_NAME = r"^(?!(.*/)?new/?$)(?!reratings(/|$))[^\s/?#][^?#]*$"
"""What can be the name of a price list and a part of its page's address."""


class NewListForm(OperatorForm):
    """The name of a price list that isn't there yet."""

    name = forms.RegexField(LIST_NAME, max_length=100, label="Name", help_text="Often the model’s. It stays as it is.")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.add_ratecard", "billing.add_ratecardversion")
def new_list(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Ask for the name of a new price list; its first version makes it."""
    form = NewListForm(request.POST or None)
    if form.is_valid():
        return redirect("operate-price-new", form.cleaned_data["name"].strip())
    context = desk.context(page="prices", form=form)
    return render(request, "operate/price_list.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.add_ratecardversion")
def publish(request: HttpRequest, desk: Desk, name: str) -> HttpResponse:
    """Ask for new prices, compare them with those in force, and publish them once that is confirmed."""
    if not desk.may("billing.add_ratecard") and not RateCard.objects.filter(name=name).exists():
        raise Http404
    sample = sample_of_card(name) if "measured" in request.GET else None
    form = PricesForm(request.POST or None, initial=_initial(name, sample))
    if form.is_valid() and "edit" not in request.POST:
        when = form.cleaned_data["effective_from"]
        try:
            after = cards.resolved(form.rates(), **form.terms())
            if "publish" not in request.POST:
                return _compared(request, desk, name, form, after)
            cards.publish(name, form.rates(), when, note=form.cleaned_data["note"], **form.terms())
        except CardError as error:
            form.refuse(error)
        else:
            begins = "from now on" if when is None else f"from {when:%-d %b %Y, %H:%M} UTC on"
            messages.success(request, f"The prices of {name} are published, in force {begins}.")
            return redirect("operate-price", name)
    context = desk.context(page="prices", name=name, form=form, concerned=_concerned(name), sample=sample)
    return render(request, "operate/price_publish.html", context, status=400 if form.errors else 200)


def _compared(request: HttpRequest, desk: Desk, name: str, form: PricesForm, after: CardPrices) -> HttpResponse:
    """Show what would change, and for whom; with `usage` in the form also last month's usage at these prices."""
    when = form.cleaned_data["effective_from"]
    if when is not None and when < timezone.now():
        form.add_error("effective_from", "Prices can’t be changed for the past.")
        context = desk.context(page="prices", name=name, form=form, concerned=_concerned(name))
        return render(request, "operate/price_publish.html", context, status=400)
    before, concerned = prices_at(when or timezone.now()).get(name), _concerned(name)
    columns = [
        Column("Class", "name"), Column("From context", "number"), Column("In force", "number"),
        Column("New", "number"), Column("Difference", "number"),
    ]  # fmt: skip
    changes = [
        Row(
            [
                CLASS_WORDS[one.usage_class],
                grouped(one.context),
                amount(one.before),
                amount(one.after),
                one.difference or "–",
            ],
            is_over=not one.difference,
        )
        for one in price_changes(before, after)
    ]
    fee = None if before is None else before.request_fee
    batch = "–" if before is None else f"{before.batch_bp / 100:g} %"
    changes += [
        Row(
            ["Each request", "", amount(fee), amount(after.request_fee), "" if fee == after.request_fee else "changes"]
        ),
        Row(["Batches, of these rates", "", batch, f"{after.batch_bp / 100:g} %", ""]),
    ]
    context = desk.context(
        page="prices",
        name=name,
        table=Table("What changes, in credits per million tokens", columns, changes),
        effective_from=when,
        concerned=concerned,
        usage=_usage(name, after, concerned, desk) if "usage" in request.POST else None,
        may_shadow=desk.may("billing.add_rerating"),
        days=DAYS,
        keeps_batches=before is None or before.batch_bp == after.batch_bp,
        sent=[
            (field, value)
            for field, values in request.POST.lists()
            if field not in {"csrfmiddlewaretoken", "usage"}
            for value in values
        ],
    )
    return render(request, "operate/price_compare.html", context)


def _usage(name: str, after: CardPrices, concerned: Mapping[str, Any], desk: Desk) -> dict[str, Any]:
    """Return the what-if of the last days at these prices, as far as it is."""
    names = [*(model for model, _ in concerned["models"]), *concerned["adapters"]]
    if not names:
        return {}
    found = brief(name, after, names, str(desk.user))
    part = f"{found.difference / found.before:+.1%}" if found.before else ""
    return {"found": found, "difference": found.difference, "part": part}
