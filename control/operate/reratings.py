"""Re-rating: what requests would have cost by other prices, the same for real, and shadows beside the real prices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.units import format_credits
from billing.models import RateCardVersion, Rerating
from billing.rating import CLASSES, CardPrices
from billing.selectors.reratings import Difference, differences, tokens_by_model
from billing.services import reratings
from billing.services.errors import RerateError
from control.operate.asks import Ask, answered, bound
from control.operate.base import Desk, address_of, operator_page
from control.operate.model_states import Traffic, cost_of, margin
from control.operate.words import CLASS_WORDS
from control.screens.forms import TypedForm
from control.screens.tables import Cell, Column, Row, State, Table
from routing.models import PublicModel
from routing.services.catalogue import cards_of_models
from tenancy.audit.trail import record
from tenancy.models import Tenant

SHOWN, MOST_SHOWN, DAYS = 50, 100, 30
OWN, BY_MODEL = "own", "by-model"
MAY_SEE, MAY_ASK, MAY_DO = "billing.view_ratecard", "billing.add_rerating", "billing.add_ledgertransfer"


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M} UTC"


def state_of(run: Rerating) -> State:
    """Return the state of a run in a word."""
    if run.ended_at is None:
        return State("beside the real prices" if run.follows else "under way", "warn")
    return State("stopped", "warn") if run.is_stopped else State("done", "good")


def kind_of(run: Rerating) -> str:
    """Return what a run is."""
    return "Re-rating" if run.commit else "Shadow" if run.follows else "What-if"


def told(run: Rerating, names: Mapping[UUID, str]) -> list[tuple[str, str]]:
    """Return what a run rates anew, and how, in words."""
    until = f" until {_utc(run.until)}" if run.until else ", and on"
    tenants = ", ".join(names.get(UUID(one), one[-8:]) for one in run.tenants) or "all"
    lines = [
        ("Requests", f"from {_utc(run.since)}{until}"), ("Of tenants", tenants),
        ("For models", ", ".join(run.model_names) or "all"), ("By", _prices_in_words(run)),
    ]  # fmt: skip
    if run.multiplier_was is not None and run.multiplier_bp is not None:
        was, then = run.multiplier_was / 10_000, run.multiplier_bp / 10_000
        lines.append(("Multiplier", f"{then:g}, where it was {was:g}"))
    return [*lines, ("Asked for by", run.asked_by or "–"), *([("Reason", run.reason)] if run.reason else [])]


def _prices_in_words(run: Rerating) -> str:
    if run.version is not None:
        return f"the prices of {run.version.card.name} from {_utc(run.version.effective_from)}"
    if run.prices is not None:
        return f"prices of {run.card} that aren’t published"
    return "each model’s own price list, as of the request" if run.cards else "the prices that each request has"


@require_safe
@operator_page(MAY_SEE)
def listing(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the runs, the newest first."""
    columns = [
        Column("Run", "name"), Column("State", "state"), Column("Requests", "number"), Column("Before", "credits"),
        Column("After", "credits"), Column("Difference", "balance"), Column("Asked for", "time"),
    ]  # fmt: skip
    rows = [
        Row(
            [
                Cell(kind_of(run), reverse("operate-rerating", args=[run.pk]), _prices_in_words(run)),
                *(state_of(run), run.counted, run.before, run.after, run.difference, run.created_at),
            ]
        )
        for run in Rerating.objects.select_related("version__card").order_by("-created_at")[:SHOWN]
    ]
    table = Table("Runs", columns, rows, "Nothing was rated anew yet.")
    return render(request, "operate/reratings.html", desk.context(page="prices", table=table, may=desk.may(MAY_ASK)))


@require_safe
@operator_page(MAY_SEE, "billing.view_usagerecord")
def rerating(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show one run: how far it is, and what it comes to."""
    run = get_object_or_404(Rerating.objects.select_related("version__card", "what_if"), pk=pk)
    sums = {by: differences(run, by, MOST_SHOWN) for by in ("model", "usage_class", "tenant")}
    named = {one.name for one in sums["tenant"]} | {UUID(one) for one in run.tenants}
    tenants = {
        pk: (name, slug) for pk, name, slug in Tenant.objects.filter(pk__in=named).values_list("pk", "name", "slug")
    }
    context = desk.context(
        page="prices",
        run=run,
        kind=kind_of(run),
        state=state_of(run),
        terms=told(run, {pk: name for pk, (name, _) in tenants.items()}),
        models=_models(run, sums["model"]),
        classes=_table("class", _named_classes(sums["usage_class"]), "Before refunds are taken off."),
        tenants=_table("tenant", _named_tenants(sums["tenant"], tenants if desk.may("gateway.view_tenant") else {})),
        share=_share(run.before, run.after),
        may_stop=run.ended_at is None and desk.may(MAY_DO if run.commit else MAY_ASK),
        may_commit=_can_be_done(run) and desk.may(MAY_DO),
    )
    return render(request, "operate/rerating.html", context)


def _can_be_done(run: Rerating) -> bool:
    is_what_if = not (run.commit or run.follows or run.prices is not None)
    return is_what_if and run.ended_at is not None and not run.is_stopped and run.changed > 0


def _share(before: int, after: int) -> str:
    return f"{(after - before) / before:+.1%}" if before else ""


_COLUMNS = (
    *(Column("Requests", "number"), Column("Tokens", "number"), Column("Before", "credits")),
    *(Column("After", "credits"), Column("Difference", "balance"), Column("Change", "number")),
)


def _line(name: Any, one: Difference, *more: Any) -> Row:
    change = _share(one.before, one.after)
    return Row([name, one.requests, one.tokens, one.before, one.after, one.difference, change, *more])


def _table(what: str, found: Iterable[tuple[Any, Difference]], note: str = "") -> Table:
    rows = [_line(*one) for one in found]
    return Table(f"By {what}", [Column(what.capitalize(), "name"), *_COLUMNS], rows, "None yet.", note=note)


def _named_classes(found: Iterable[Difference]) -> list[tuple[str, Difference]]:
    order = {name: at for at, name in enumerate((*CLASSES, "request"))}
    words = {**CLASS_WORDS, "request": "Each request"}
    return [(words[one.name], one) for one in sorted(found, key=lambda one: order[one.name])]


def _named_tenants(found: Iterable[Difference], names: Mapping[UUID, tuple[str, str]]) -> list[tuple[Cell, Difference]]:
    lines = []
    for one in found:
        name, slug = names.get(one.name, (f"…{str(one.name)[-8:]}", ""))
        lines.append((Cell(name, address_of("operate-tenant", slug) if slug else ""), one))
    return lines


def _models(run: Rerating, found: list[Difference]) -> Table:
    """Return the sums by model, with what they cost the operator and the margins, where that is known."""
    priced = PublicModel.objects.filter(name__in=[one.name for one in found]).exclude(cost_input=None)
    tokens = tokens_by_model(run) if priced else {}
    known = {model.name: cost_of(model, _traffic(tokens.get(model.name, {}))) for model in priced}
    costs = {name: one.amount for name, one in known.items() if one is not None}
    more = [Column("Cost", "credits"), Column("Margin before", "number"), Column("After", "number")] if costs else []
    rows = []
    for one in found:
        cost = costs.get(one.name)
        own = [cost, margin(one.before, cost) or "–", margin(one.after, cost) or "–"] if costs else []
        rows.append(_line(one.name, one, *own))
    return Table("By model", [Column("Model", "name"), *_COLUMNS, *more], rows, "No request ran that it is about.")


def _traffic(tokens: Mapping[str, int]) -> Traffic:
    count = tokens.get
    written = count("cache_write_short", 0) + count("cache_write_long", 0)
    output = count("output", 0) + count("reasoning", 0)
    return Traffic(0, count("input", 0) + written, count("cache_read", 0), output)


def brief(card: str, prices: CardPrices, models: Iterable[str], asked_by: str) -> Rerating:
    """Return the what-if of the last `DAYS` days by these prices, its first chunk done: the same one for an hour."""
    now, wanted = timezone.now(), sorted(models)
    recent = Rerating.objects.filter(card=card, commit=False, follows=False, created_at__gte=now - timedelta(hours=1))
    for run in recent.filter(is_stopped=False).order_by("-created_at")[:SHOWN]:
        if run.model_names == wanted and run.prices == reratings.stored(prices):
            break
    else:
        since = datetime.combine(now.date() - timedelta(days=DAYS - 1), time(), tzinfo=UTC)
        run = reratings.ask(reratings.Terms(since=since, card=card, prices=prices, models=wanted), asked_by=asked_by)
    if run.ended_at is None:
        reratings.step(run)
    return run


# -- asking ------------------------------------------------------------------------------------------------------------


def _choices() -> list[tuple[str, str]]:
    versions = RateCardVersion.objects.filter(published_at__isnull=False).select_related("card")
    newest = versions.order_by("-effective_from")[:200]
    return [
        (OWN, "the prices that each request has"),
        (BY_MODEL, "each model’s own price list, as of the request"),
        *((str(one.pk), f"{one.card.name} from {_utc(one.effective_from)}") for one in newest),
    ]


def _names(text: str) -> list[str]:
    return [one for one in re.split(r"[,\s]+", text) if one]


class WhatIfForm(forms.Form):
    """Which requests are rated anew, and how."""

    by = forms.ChoiceField(choices=_choices, label="By")
    since = forms.DateTimeField(
        label="Requests from",
        help_text="UTC.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    until = forms.DateTimeField(
        required=False,
        label="Until",
        help_text="UTC. Empty: until ten minutes ago.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    tenants = forms.CharField(
        required=False, max_length=4000, label="Of tenants", help_text="Their short names. Empty: of all."
    )
    models = forms.CharField(required=False, max_length=4000, label="For models", help_text="Empty: for all.")
    multiplier_was = forms.DecimalField(
        required=False, min_value=0, max_value=100, decimal_places=4, label="Multiplier of the plan until now"
    )
    multiplier_bp = forms.DecimalField(
        required=False,
        min_value=0,
        max_value=100,
        decimal_places=4,
        label="Multiplier instead",
        help_text="0.8 is 20 % off. Empty both: as each request has it.",
    )
    follows = forms.BooleanField(
        required=False,
        label="Go on beside the real prices",
        help_text="A shadow: until the list’s next version is in force. Nothing is charged by it.",
    )

    def clean_tenants(self) -> list[UUID]:
        """Return their ids."""
        slugs = _names(self.cleaned_data["tenants"])
        found = dict(Tenant.objects.filter(slug__in=slugs).values_list("slug", "pk"))
        if unknown := [slug for slug in slugs if slug not in found]:
            raise ValidationError(f"There is no tenant {unknown[0]}.")
        return [found[slug] for slug in slugs]

    def clean(self) -> dict[str, Any]:
        """Refuse half a multiplier."""
        asked: dict[str, Any] = super().clean() or self.cleaned_data
        if (asked.get("multiplier_was") is None) != (asked.get("multiplier_bp") is None):
            self.add_error("multiplier_bp", "Write both what it was and what it is, or neither.")
        return asked

    def terms(self) -> reratings.Terms:
        """Return what was asked for."""
        asked = self.cleaned_data
        version = None
        if asked["by"] not in {OWN, BY_MODEL}:
            version = RateCardVersion.objects.select_related("card").get(pk=asked["by"])
        was, then = asked["multiplier_was"], asked["multiplier_bp"]
        return reratings.Terms(
            since=asked["since"],
            until=asked["until"],
            tenants=asked["tenants"],
            models=_names(asked["models"]),
            card=version.card.name if version else "",
            version=version,
            cards=cards_of_models() if asked["by"] == BY_MODEL else {},
            multiplier=None if was is None else (int(was * 10_000), int(then * 10_000)),
            follows=asked["follows"],
        )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page(MAY_SEE, MAY_ASK)
def new(request: HttpRequest, desk: Desk) -> HttpResponseBase:
    """Ask which requests to rate anew, and begin a what-if or a shadow."""
    since = datetime.combine(timezone.now().date() - timedelta(days=DAYS), time(), tzinfo=UTC)
    form = WhatIfForm(bound(request), initial={"since": since, "by": request.GET.get("version", OWN)})
    ask = Ask(
        title="New what-if",
        button="Rate them",
        back=reverse("operate-reratings"),
        crumb="What-ifs and re-ratings",
        page="prices",
        follows=[
            "Each request is rated and rounded anew, and nothing is charged.",
            "The what-if’s page shows the sums; from there it can be carried out.",
        ],
    )

    def act(_: dict[str, Any]) -> HttpResponse:
        return redirect("operate-rerating", reratings.ask(form.terms(), asked_by=str(desk.user)).pk)

    return answered(request, desk, ask, form, act, version="by", cards="by", multiplier="multiplier_bp")


@require_POST
@operator_page(MAY_SEE)
def stop(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """End a run where it is."""
    run = get_object_or_404(Rerating, pk=pk)
    if not desk.may(MAY_DO if run.commit else MAY_ASK):
        return render(request, "operate/refused.html", desk.context(lacking=[MAY_DO]), status=403)
    if reratings.stop(run):
        record("rerating.stopped", run)
        messages.success(request, f"{kind_of(run)} stopped. What it did stays.")
    return redirect("operate-rerating", pk)


@require_POST
@operator_page(MAY_SEE, MAY_ASK)
def shadow(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Keep the prices of a what-if running beside the real ones."""
    run = get_object_or_404(Rerating.objects.select_related("version__card"), pk=pk)
    try:
        made = reratings.shadow_of(run, asked_by=str(desk.user))
    except RerateError as error:
        messages.error(request, str(error).partition(": ")[2])
        return redirect("operate-rerating", pk)
    return redirect("operate-rerating", made.pk)


class CommitForm(TypedForm):
    """Why requests are charged by other prices."""

    reason = forms.CharField(max_length=200, help_text="Stands in the ledger, which the tenants read too.")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page(MAY_SEE, MAY_DO)
def commit(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Say what follows; once that is confirmed, do for real what a what-if said."""
    run = get_object_or_404(Rerating.objects.select_related("version__card"), pk=pk)
    back = reverse("operate-rerating", args=[pk])
    if not _can_be_done(run):
        return redirect(back)

    def act(asked: dict[str, Any]) -> HttpResponse:
        made = reratings.carry_out(run, asked_by=str(desk.user), reason=asked["reason"])
        messages.success(request, "It has begun, and goes on by itself.")
        return redirect("operate-rerating", made.pk)

    more = "more" if run.difference > 0 else "less"
    difference = format_credits(abs(run.difference), separator=",")
    follows = [
        f"{run.changed:,} requests get another price; together they are charged {difference} credits {more}.",
        "What they cost more is taken from the grants that are live now, then overdraws.",
        "What they cost less goes back to where it was taken from; what came from a grant that has ended is lost.",
        "Each keeps what it was charged before as an earlier revision. Another re-rating is the only way back.",
    ]
    ask = Ask(
        "Charge these requests anew",
        "Charge them anew",
        back,
        kind_of(run),
        page="prices",
        follows=follows,
        is_danger=True,
    )
    return answered(request, desk, ask, CommitForm(bound(request), expected=f"{run.changed}"), act)
