"""Adding a model, step by step: its source, the proof that it answers, its price, its plans, its rules.

Each step is a page of its own and is done or not by the rows' word, so it can be left, come back to and done again. The
pages are in `model_source`, `model_terms` and `model_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from billing.models import PlanVersion
from billing.rating import CardPrices
from billing.services.plans import latest_versions
from control.operate.base import Desk
from control.operate.model_states import Standing, card_of, plans_with, standing_of
from control.operate.models import Rules, auto_of, catalogue_rows, judged_rules
from control.screens.tables import State
from gateway.runtime.data_plane import DeploymentState, Live
from routing.models import PublicModel


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its page, whether it is done, and whether it is the one that is shown."""

    name: str
    title: str
    href: str
    is_done: bool
    is_here: bool


def steps_of(here: str, model: PublicModel | None, facts: Facts | None) -> list[Step]:
    """Return all steps; without a model those after the first lead nowhere yet."""
    done = {"source": model is not None}
    if facts is not None:
        done |= {"proof": facts.answers, "price": facts.card is not None, "plans": bool(facts.plans)}
        done |= {"rules": facts.auto.word == "yes", "live": False}
    titles = {
        "source": "Source",
        "proof": "Fetch and proof",
        "price": "Price",
        "plans": "Plans",
        "rules": "Rules",
        "live": "Live",
    }
    steps = []
    for name, title in titles.items():
        href = ""
        if model is not None and name != "source":
            href = reverse(f"operate-model-{name}", args=[model.pk])
        steps.append(Step(name, title, href, done.get(name, False), name == here))
    return steps


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the steps stand on: engines, price, plans that include the model, rules that lead to it."""

    standing: Standing
    answers: bool
    card: CardPrices | None
    versions: list[PlanVersion]
    plans: list[PlanVersion]
    rules: Rules
    auto: State
    states: dict[UUID, DeploymentState] | None


def facts_of(live: Live, model: PublicModel) -> Facts:
    """Return the facts of a model that is in the catalogue."""
    states, prices, versions, rules = live.deployment_states(), live.prices(), latest_versions(), judged_rules()
    own = [(states or {}).get(one.pk) for one in model.deployments.all() if one.is_active]
    answers = any(replica.engine == "" and replica.context for one in own if one for replica in one.replicas)
    plans = plans_with(model.name, versions)
    standing = standing_of(live, states, prices, model)
    card = prices.get(card_of(model))
    return Facts(standing, answers, card, versions, plans, rules, auto_of(model.name, rules), states)


def step_page(
    request: HttpRequest, desk: Desk, step: str, model: PublicModel | None, *, facts: Facts | None = None, **more: Any
) -> HttpResponse:
    """Answer with the page of a step."""
    steps = steps_of(step, model, facts)
    at = next(number for number, one in enumerate(steps) if one.is_here)
    context = desk.context(
        page="models",
        steps=steps,
        model=model,
        before=steps[at - 1].href if at else "",
        following=steps[at + 1].href if at + 1 < len(steps) else "",
        facts=facts,
        **more,
    )
    form = more.get("form")
    status = 400 if form is not None and form.errors else 200
    return render(request, f"operate/model_{step}.html", context, status=status)


def new_model(pk: UUID) -> PublicModel:
    """Return the model that is being added; 404 for one that is withdrawn or a tenant's own."""
    found: PublicModel = get_object_or_404(catalogue_rows(), pk=pk, is_active=True, tenant=None)
    return found
