"""The catalogue: how much each model is used and costs, whether it answers, who may ask for it, whether auto does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from base.units import format_credits
from billing.models import PlanVersion
from billing.rating import CLASSES, CardPrices
from billing.selectors.usage import usage_of_all
from billing.services.plans import latest_versions
from control.operate.base import Desk, address_of, operator_page
from control.operate.fields import NameField, NamesField, OperatorForm, rate_cards, tasks
from control.operate.model_states import (
    DAYS,
    Cost,
    Traffic,
    adapter_of,
    card_of,
    cost_of,
    plans_with,
    standing_of,
    thousand,
    traffic,
)
from control.operate.words import CLASS_WORDS, KIND_WORDS
from control.screens.charts import Tile, stacked
from control.screens.figures import amount, day, grouped, share, short
from control.screens.forms import CreditsField
from control.screens.tables import Cell, Column, Row, State, Table
from fleet.fetches import under_way
from fleet.removal import losses_of, withdraw
from gateway.runtime.data_plane import DeploymentState, live_of
from inference.types import Kind
from routing.findings import Finding, findings_of, rules_in_order
from routing.models import Deployment, Fetch, PublicModel, RouteRule
from routing.services.catalogue import change_model
from tenancy.services.restrictions import users_of

SHOWN = 50
Rules = Mapping[RouteRule, Sequence[Finding]]
_COLUMNS = [
    Column("Model", "name"),
    Column("Of all requests", "number"),
    Column("In / out, a million", "number"),
    Column("Cost", "number"),
    Column("State", "wraps"),
    Column("Plans"),
    Column("auto", "wraps"),
]
_VIEWS = {"": "Everybody’s", "own": "Tenants’ own", "withdrawn": "Withdrawn"}


def catalogue_rows() -> QuerySet[PublicModel]:
    """Return all models with the rows that their state and price depend on."""
    rows = PublicModel.objects.select_related("adapter__base", "tenant", "project")
    return rows.prefetch_related("deployments", "tenant__subscriptions__version")


def judged_rules() -> Rules:
    """Return the rules in the order in which they are tried, with what is wrong with each."""
    allowed = {one.plan.slug: one.allowed_models for one in latest_versions()}
    return findings_of(list(rules_in_order()), allowed, tasks())


def auto_of(name: str, rules: Rules) -> State:
    """Return whether auto takes the model: by how many rules, or why by none."""
    main: list[str] = []
    spare: list[str] = []
    idle: list[str] = []
    for rule, found in rules.items():
        for target in rule.targets.all():
            if target.model.name == name:
                lost = not rule.is_active or any(one.grave for one in found)
                (idle if lost else spare if target.is_fallback else main).append(rule.name)
    if main:
        return State("yes", "good", _by(main))
    if spare:
        return State("as fallback", "", _by(spare))
    return State("no", "", f"{_by(idle)}, which decides nothing" if idle else "no rule leads to it")


def _by(names: Sequence[str]) -> str:
    first = names[0] if len(names[0]) <= 40 else f"{names[0][:39]}…"
    return f"by “{first}”" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


@require_safe
@operator_page("routing.view_publicmodel")
def models(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the catalogue; `view` chooses whose models, `q` part of a name, `after` where the page before ended."""
    view = request.GET.get("view", "")
    view = view if view in _VIEWS else ""
    text, after = (request.GET.get(name, "").replace("\0", "").strip()[:120] for name in ("q", "after"))
    rows = catalogue_rows().filter(is_active=view != "withdrawn").order_by("name")
    if view != "withdrawn":
        rows = rows.filter(tenant__isnull=view != "own")
    if text:
        rows = rows.filter(Q(name__icontains=text) | Q(description__icontains=text))
    page = list((rows.filter(name__gt=after) if after else rows)[: SHOWN + 1])
    older = {"view": view, "q": text, "after": page[SHOWN - 1].name} if len(page) > SHOWN else None
    live = live_of(request)
    states, prices, used, versions = live.deployment_states(), live.prices(), traffic(), latest_versions()
    total, rules = sum(one.requests for one in used.values()), judged_rules()
    lines = []
    for model in page[:SHOWN]:
        standing, mine = standing_of(live, states, prices, model), used.get(model.name, Traffic())
        card, included = prices.get(card_of(model)), plans_with(model.name, versions)
        lines.append(
            Row(
                [
                    Cell(model.name, reverse("operate-model", args=[model.pk]), _about(model)),
                    Cell(share(mine.requests, total), detail=f"{short(mine.requests)} requests"),
                    _rates(card),
                    _cost(model, mine),
                    State(standing.word, standing.state.tone, standing.count or standing.reason),
                    _plans(model, included, versions),
                    auto_of(model.name, rules),
                ],
                is_over=not model.is_active,
            )
        )
    empty = "No model of this name." if text else "None." if view else "No model yet. Add the first one."
    table = Table("Models", _COLUMNS, lines, empty, older=f"?{urlencode(older)}" if older else "", id="models")
    context = desk.context(
        page="models",
        table=table,
        views=[(name, title, f"?{urlencode({'view': name})}" if name else "?") for name, title in _VIEWS.items()],
        view=view,
        q=text,
        fetches=under_way() if not view else [],
        may_add=desk.may("routing.add_publicmodel"),
        days=DAYS,
    )
    return render(request, "operate/models.html", context)


def kinds_in_words(model: PublicModel) -> str:
    """Return the kinds of requests that the model serves, in words."""
    return ", ".join(KIND_WORDS.get(kind, kind) for kind in model.kinds)


def _about(model: PublicModel) -> str:
    adapter = adapter_of(model)
    parts = [kinds_in_words(model), f"{model.context_length:,} context"]
    if adapter is not None:
        parts.append(f"adapter of {adapter.base.name}")
    if model.tenant is not None:
        parts.append(f"only {model.project or model.tenant}")
    return " · ".join(parts)


def _rates(card: CardPrices | None) -> Any:
    if card is None:
        return Cell(State("no price", "warn"))
    rates = card.tiers[0].rates
    return Cell(amount(rates["input"]), detail=f"out {amount_text(rates['output'])}")


def amount_text(micro: int) -> str:
    """Return credits exactly, without zeros at the end."""
    return format_credits(micro, separator=",")


def _cost(model: PublicModel, used: Traffic) -> Any:
    cost = cost_of(model, used)
    if cost is None:
        return "–"
    return Cell(amount(cost.amount), detail=f"margin {cost.margin}", title=cost.source)


def _plans(model: PublicModel, included: Sequence[PlanVersion], versions: Sequence[PlanVersion]) -> Any:
    if model.tenant_id is not None:
        return Cell("its tenant’s")
    names = ", ".join(one.plan.name for one in included)
    if not included:
        return Cell("none")
    return Cell("all" if len(included) == len(versions) else f"{len(included)} of {len(versions)}", title=names)


# -- one model ---------------------------------------------------------------------------------------------------------


@require_safe
@operator_page("routing.view_publicmodel")
def model(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show one model: its state, traffic, price and cost, the plans that include it, and the rules that lead to it."""
    row = get_object_or_404(catalogue_rows(), pk=pk)
    live = live_of(request)
    states, prices = live.deployment_states(), live.prices()
    standing, card = standing_of(live, states, prices, row), prices.get(card_of(row))
    versions, rules, used = latest_versions(), judged_rules(), traffic()
    mine, total = used.get(row.name, Traffic()), sum(one.requests for one in used.values())
    cost = cost_of(row, mine)
    tiles = [
        Tile(f"Requests, {DAYS} days", grouped(mine.requests), f"{share(mine.requests, total)} of all"),
        Tile(f"Charged, {DAYS} days", amount(mine.charge), "credits"),
        Tile("1,000 tokens in / out", _both(card), "credits"),
        Tile("Margin", "–" if cost is None else cost.margin, _margin_note(cost)),
    ]
    leads = [(rule, found, _weight(rule, row)) for rule, found in rules.items() if _weight(rule, row)]
    own = list(PublicModel.objects.filter(adapter__base=row, is_active=True).order_by("name")[:SHOWN])
    context = desk.context(
        page="models",
        model=row,
        standing=standing,
        kinds=kinds_in_words(row),
        adapter=adapter_of(row),
        card=card_of(row),
        tiles=tiles,
        chart=_chart(row.name) if mine.requests else None,
        deployments=_deployments(row, states),
        rates=rates_table(card),
        fee=None if card is None else card.request_fee,
        batch=None if card is None else f"{card.batch_bp / 100:g} %",
        plans=[(one, not one.allowed_models or row.name in one.allowed_models) for one in versions],
        rules=leads,
        auto=auto_of(row.name, rules),
        adapters=own,
        is_unpriced=card is None and row.is_active,
        may_change=desk.may("routing.change_publicmodel"),
        may_plans=desk.may("billing.add_planversion"),
        may_rules=desk.may("routing.change_routerule"),
        days=DAYS,
    )
    return render(request, "operate/model.html", context)


def _both(card: CardPrices | None) -> str:
    if card is None:
        return "no price"
    return f"{amount_text(thousand(card, 'input') or 0)} / {amount_text(thousand(card, 'output') or 0)}"


def _margin_note(cost: Cost | None) -> str:
    if cost is None:
        return "its cost is neither measured nor entered"
    return f"cost {amount_text(cost.amount)} credits, {cost.source}"


def _weight(rule: RouteRule, row: PublicModel) -> str:
    """Return the part that the model has of a rule's requests; empty where the rule doesn't lead to it."""
    targets = list(rule.targets.all())
    mine = next((one for one in targets if one.model_id == row.pk), None)
    if mine is None:
        return ""
    if mine.is_fallback:
        return "fallback"
    return share(mine.weight, sum(one.weight for one in targets if not one.is_fallback))


def _chart(name: str) -> Any:
    """Return the model's requests by day; a bar leads to them."""
    last = timezone.now().date()
    first = last - timedelta(days=DAYS - 1)
    days = [first + timedelta(days=number) for number in range(DAYS)]
    cells = {(day(one.day), ""): one.requests for one in usage_of_all(first, last) if one.model == name}
    hrefs = {
        day(one): address_of(
            "operate-requests", model=name, since=f"{one}T00:00:00Z", until=f"{one + timedelta(days=1)}T00:00:00Z"
        )
        for one in days
    }
    return stacked(cells, [day(one) for one in days], show=grouped, axis=short, href=hrefs.__getitem__)


def engine_page(pk: UUID) -> str:
    """Return where a deployment's page is."""
    try:
        return reverse("operate-engine", args=[pk])
    except NoReverseMatch:
        return f"/operate/engines/{pk}/"


def _deployments(row: PublicModel, states: Mapping[UUID, DeploymentState] | None) -> Table:
    columns = [
        Column("Deployment", "name"),
        Column("State", "wraps"),
        Column("Running / waiting", "number"),
        Column("Weight", "number"),
    ]
    lines = []
    for one in row.deployments.all():
        known = (states or {}).get(one.pk)
        load = "–" if known is None else f"{known.running} / {known.waiting}"
        where = one.source or ("the worker’s" if one.backend == Deployment.Backend.WORKER else one.backend)
        cell = Cell(one.name, engine_page(one.pk), f"{one.get_backend_display()} · {where}")
        state = deployment_state(one, known, is_seen=states is not None)
        lines.append(Row([cell, state, load, one.weight], is_over=not one.is_active))
    return Table("Deployments", columns, lines, "Nothing serves it.", id="deployments")


def deployment_state(row: Deployment, known: DeploymentState | None, *, is_seen: bool) -> State:
    """Return a deployment's state with the reason."""
    if not row.is_active:
        return State("off")
    if not is_seen:
        return State("unknown")
    if known is None:
        return State("not open", "bad")
    return State("ready", "good", known.reason) if known.is_ready else State("not ready", "bad", known.reason)


def rates_table(card: CardPrices | None) -> Table | None:
    """Return a price list's rates, a row for each tier of context."""
    if card is None:
        return None
    columns = [Column("Context", "text"), *(Column(CLASS_WORDS[name], "credits") for name in CLASSES)]
    rows = [
        Row([f"from {grouped(tier.min_context)}" if tier.min_context else "any", *(tier.rates[n] for n in CLASSES)])
        for tier in card.tiers
    ]
    return Table("Credits per million tokens", columns, rows)


# -- changes -----------------------------------------------------------------------------------------------------------


class ModelForm(OperatorForm):
    """The fields of a model that an operator may change."""

    description = forms.CharField(max_length=300, required=False, help_text="Tenants read it beside the name.")
    kinds = NamesField(lambda: [kind.value for kind in Kind], label="For")
    context_length = forms.IntegerField(min_value=1, label="Context", help_text="Tokens, prompt and answer together.")
    default_max_tokens = forms.IntegerField(
        min_value=1,
        required=False,
        label="Longest answer by default",
        help_text="Tokens, where a request doesn’t say max_tokens. Empty: as many as the context holds.",
    )
    rate_card = NameField(rate_cards, any_label="that of its base", label="Price list")
    cost_input = CreditsField(required=False, label="Cost of a million tokens read", help_text="In credits: yours.")
    cost_output = CreditsField(required=False, label="Cost of a million tokens written", help_text="Empty: not known.")

    def __init__(self, data: Any = None, *, model: PublicModel) -> None:
        super().__init__(data, initial={name: getattr(model, name) for name in self.base_fields})
        if adapter_of(model) is None:
            card: Any = self.fields["rate_card"]
            card.required = True
            card.choices = [choice for choice in card.choices if choice[0] or not model.rate_card]


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.change_publicmodel")
def edit(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Change a model's description, price list, context and cost."""
    row = get_object_or_404(catalogue_rows(), pk=pk)
    form = ModelForm(request.POST or None, model=row)
    if form.is_valid():
        try:
            change_model(row, **form.cleaned_data)
        except forms.ValidationError as error:
            form.refuse(error)
        else:
            messages.success(request, f"{row.name} is changed.")
            return redirect("operate-model", row.pk)
    context = desk.context(page="models", model=row, form=form)
    return render(request, "operate/model_edit.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.change_publicmodel")
def withdrawal(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Say who loses the model, and once its name is typed withdraw it and mend what stood on it."""
    row = get_object_or_404(catalogue_rows(), pk=pk, is_active=True)
    wrong = ""
    if request.method == "POST":
        if request.POST.get("name", "").strip() == row.name:
            for line in withdraw(row.name, mends=True):
                messages.success(request, line)
            return redirect("operate-models")
        wrong = f"Type {row.name} to confirm."
    context = desk.context(
        page="models",
        model=row,
        adapter=adapter_of(row),
        losses=losses_of(row.name).lines(),
        users=users_of(row.name),
        wrong=wrong,
    )
    return render(request, "operate/model_withdraw.html", context, status=400 if wrong else 200)


def fetch_word(fetch: Fetch) -> State:
    """Return a fetch's state."""
    tones = {Fetch.State.DONE: "good", Fetch.State.FAILED: "bad", Fetch.State.STOPPED: ""}
    words = {Fetch.State.WAITING: "waits", Fetch.State.RUNNING: "on its way"}
    return State(words.get(Fetch.State(fetch.state), fetch.state), tones.get(Fetch.State(fetch.state), "warn"))
