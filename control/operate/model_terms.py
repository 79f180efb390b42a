"""Adding a model: its price, and the plans that include it."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from billing.rating import CLASSES
from billing.selectors.plans import tenants_by_plan
from billing.services import cards, plan_moves
from billing.services.cards import DEFAULT_RATES
from billing.services.errors import CreditError, PlanError
from billing.services.plan_models import include_models
from control.operate.asks import METHODS
from control.operate.base import Desk, operator_page
from control.operate.fields import NameField, OperatorForm, rate_cards
from control.operate.model_states import card_of
from control.operate.model_wizard import facts_of, new_model, step_page
from control.operate.prices import LIST_NAME
from control.operate.words import CLASS_WORDS
from control.screens.forms import CreditsField
from gateway.runtime.data_plane import live_of
from routing.models import PublicModel
from routing.services.catalogue import change_model


class PriceForm(OperatorForm):
    """A price list of the model's own, or one that exists; and what the model costs, where that is known."""

    how = forms.ChoiceField(
        choices=[("own", "A price list of its own"), ("card", "A price list that exists")],
        widget=forms.RadioSelect,
        label="Priced by",
    )
    card = NameField(rate_cards, required=False, label="Price list")
    name = forms.CharField(max_length=100, required=False, label="Name of the new list")
    input = CreditsField(required=False, help_text="Credits per million tokens.")
    cache_read = CreditsField(required=False, label="Cached", help_text="Empty: as input.")
    output = CreditsField(required=False, help_text="Credits per million tokens.")
    reasoning = CreditsField(required=False, help_text="Empty: as output.")
    request_fee = CreditsField(required=False, label="Each request", help_text="Empty: nothing.")
    cost_input = CreditsField(required=False, label="A million tokens read", help_text="Credits; empty: not known.")
    cost_output = CreditsField(required=False, label="A million tokens written")

    OWN = ("name", "input", "cache_read", "output", "reasoning", "request_fee")
    COST = ("cost_input", "cost_output")

    def clean(self) -> dict[str, Any]:
        """Ask for the fields of the chosen way."""
        given: dict[str, Any] = super().clean() or {}
        if given.get("how") == "card" and not given.get("card"):
            self.add_error("card", "Choose the price list.")
        for name in ("input", "output") if given.get("how") == "own" else ():
            if given.get(name) is None and name not in self.errors:
                self.add_error(name, "Say what it costs; 0 is free.")
        return given


@require_http_methods(METHODS)
@operator_page("routing.change_publicmodel")
def price(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Give the model a price that somebody has chosen."""
    model = new_model(pk)
    card = card_of(model)
    initial = {
        "how": "card" if card else "own",
        "card": card,
        "name": model.name[:100],
        **{name: getattr(model, name) for name in PriceForm.COST},
    }
    form = PriceForm(request.POST or None, initial=initial)
    if form.is_valid():
        try:
            _set_price(desk, model, form.cleaned_data)
        except (CreditError, ValueError, forms.ValidationError) as error:
            form.refuse(error)
        else:
            return redirect("operate-model-plans", model.pk)
    kind = "adapter" if hasattr(model, "adapter") else model.kinds[0] if model.kinds else "chat"
    usual = DEFAULT_RATES.get(kind, {})
    return step_page(
        request,
        desk,
        "price",
        model,
        facts=facts_of(live_of(request), model),
        form=form,
        own=[form[name] for name in form.OWN],
        cost=[form[name] for name in form.COST],
        usual=[(CLASS_WORDS[name], usual[name]) for name in CLASSES if name in usual],
    )


@transaction.atomic
def _set_price(desk: Desk, model: PublicModel, given: dict[str, Any]) -> None:
    card = given["card"]
    if given["how"] == "own":
        card = given["name"].strip() or model.name[:100]
        if not (desk.may("billing.add_ratecard") and desk.may("billing.add_ratecardversion")):
            raise ValueError("how: your role may not publish prices: choose a list that exists")
        if re.match(LIST_NAME, card) is None:
            raise ValueError("name: a price list can’t be called so: choose another name")
        if card in rate_cards():
            raise ValueError("name: there is a price list of this name: choose it above, or publish its new version")
        rates = {name: given[name] for name in CLASSES if given.get(name) is not None}
        cards.publish(card, {0: rates}, request_fee=given["request_fee"] or 0, note=f"for {model.name}"[:200])
    change_model(model, rate_card=card, **{name: given[name] for name in PriceForm.COST})


@require_http_methods(METHODS)
@operator_page("routing.view_publicmodel", "billing.view_plan")
def plans(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Put the model into plans: a new version of each, to which its tenants move if that is wanted."""
    model, may_add = new_model(pk), desk.may("billing.add_planversion")
    if request.method == "POST" and may_add:
        chosen = request.POST.getlist("plan")
        moves = "move" in request.POST and desk.may("billing.change_subscription")
        for slug in chosen:
            _include(request, desk, slug, model.name, moves=moves)
        return redirect("operate-model-rules", model.pk)
    facts, counts = facts_of(live_of(request), model), tenants_by_plan()
    lines = [
        (one, one in facts.plans, sum(counts.get(one.plan_id, {}).values()))
        for one in facts.versions
    ]  # fmt: skip
    may = {"may_add": may_add, "may_move": desk.may("billing.change_subscription")}
    return step_page(request, desk, "plans", model, facts=facts, lines=lines, **may)


def _include(request: HttpRequest, desk: Desk, slug: str, name: str, *, moves: bool) -> None:
    try:
        with transaction.atomic():
            version = include_models(slug, [name])
            messages.success(request, f"{version} includes {name}.")
    except (PlanError, forms.ValidationError) as error:
        messages.error(request, f"{slug}: {error}")
        return
    if moves:
        try:
            move = plan_moves.ask(version.plan, version.plan, only_adds=True, asked_by=desk.user.email)
        except PlanError:
            return  # nobody has older terms
        messages.info(request, f"{move.total:,} tenants of {version.plan} get the new terms, some at a time.")
