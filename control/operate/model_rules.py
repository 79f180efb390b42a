"""Adding a model: the rules of auto that lead to it, and whether auto takes it in the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_safe

from billing.costs import CostRates
from billing.models import PlanVersion
from billing.rating import WHOLE_BP
from billing.selectors.costs import calibrated
from control.operate.asks import METHODS
from control.operate.base import Desk, operator_page
from control.operate.model_states import thousand
from control.operate.model_wizard import Facts, facts_of, new_model, step_page
from control.operate.words import CLASS_WORDS
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import Live, live_of
from routing.errors import RoutingError
from routing.models import PublicModel, RouteRule, RouteTarget
from routing.services.defaults import ensure_default_routes
from routing.services.rules import write_rule
from routing.types import Route


@require_http_methods(METHODS)
@operator_page("routing.view_publicmodel", "routing.view_routerule")
def rules(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Lead rules of auto to the model."""
    model, may_change = new_model(pk), desk.may("routing.change_routerule")
    wrong = ""
    if request.method == "POST" and may_change:
        if "defaults" in request.POST:
            ensure_default_routes()
            return redirect("operate-model-rules", model.pk)
        wrong = _lead(request, model)
        if not wrong:
            return redirect("operate-model-live", model.pk)
    facts = facts_of(live_of(request), model)
    lines = [_ruled(rule, found, model) for rule, found in facts.rules.items()]
    return step_page(request, desk, "rules", model, facts=facts, lines=lines, wrong=wrong, may_change=may_change)


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule as the step shows it: where it leads, with which weight to this model, and what is wrong with it."""

    rule: RouteRule
    findings: Sequence[Any]
    targets: Sequence[RouteTarget]
    mine: RouteTarget | None
    about: str


def _ruled(rule: RouteRule, found: Sequence[Any], model: PublicModel) -> RuleLine:
    targets = list(rule.targets.all())
    mine = next((one for one in targets if one.model_id == model.pk), None)
    return RuleLine(rule, found, targets, mine, conditions_of(rule))


def conditions_of(rule: RouteRule) -> str:
    """Return when a rule holds, in words."""
    least, most = rule.min_prompt_tokens, rule.max_prompt_tokens
    size = ""
    if least is not None or most is not None:
        size = f"{least or 0:,} to {most:,} tokens" if most is not None else f"from {least:,} tokens on"
    parts = (
        f"plan {rule.plan}" if rule.plan else "",
        f"task {rule.task}" if rule.task else "",
        f"with {rule.get_structure_display()}" if rule.structure else "",
        size,
    )
    return ", ".join(filter(None, parts)) or "every request"


def _lead(request: HttpRequest, model: PublicModel) -> str:
    """Write the chosen rules; return the error in words, "" without one."""
    chosen = set(request.POST.getlist("rule"))
    for rule in RouteRule.objects.filter(pk__in=[one for one in chosen if _is_uuid(one)]):
        text = request.POST.get(f"weight_{rule.pk}", "").strip() or "1"
        if not text.isdecimal() or not 0 < int(text) < 2**31:
            return f"{rule.name}: a weight is a whole number from 1 on."
    try:
        with transaction.atomic():
            _write_rules(request, model, chosen)
    except ValidationError as error:
        return " ".join(error.messages)
    return ""


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _write_rules(request: HttpRequest, model: PublicModel, chosen: Collection[str]) -> None:
    for rule in RouteRule.objects.prefetch_related("targets__model"):
        targets = list(rule.targets.all())
        others = [(one.model, one.weight, one.is_fallback) for one in targets if one.model_id != model.pk]
        had = next((one for one in targets if one.model_id == model.pk), None)
        if str(rule.pk) not in chosen:
            if had is not None and f"had_{rule.pk}" in request.POST:
                write_rule(rule, others)
            continue
        weight = int(request.POST.get(f"weight_{rule.pk}", "").strip() or "1")
        is_fallback = had.is_fallback if had is not None else False
        write_rule(rule, [*others, (model, weight, is_fallback)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether auto takes the model for a request of a rule, in a sentence."""

    rule: str
    is_yes: bool
    text: str


@require_safe
@operator_page("routing.view_publicmodel")
def live(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Say whether auto uses the model, and the price of a thousand tokens."""
    model, here = new_model(pk), live_of(request)
    facts = facts_of(here, model)
    verdicts = list(_verdicts(here, model, facts))
    figures = []
    sample = calibrated([model.name]).get(model.name)
    costs = {"input": model.cost_input, "output": model.cost_output}
    if sample is not None:
        costs |= CostRates(**sample.rates).prices(USUAL_PROMPT, WHOLE_BP, with_cached=False)
    for usage_class, cost in costs.items():
        price = thousand(facts.card, usage_class)
        if price is not None:
            own = None if cost is None else -(-cost // 1_000)
            left = None if own is None or not price else f"{100 * (price - own) / price:.0f} %"
            figures.append((CLASS_WORDS[usage_class], price, own, left))
    return step_page(
        request,
        desk,
        "live",
        model,
        facts=facts,
        verdicts=verdicts,
        uses=next((one for one in verdicts if one.is_yes), None),
        figures=figures,
        has_cost=costs["input"] is not None,
        base_url=request.build_absolute_uri("/v1"),
    )


MOST_VERDICTS = 5
USUAL_PROMPT = 1024  # tokens, at which a measured cost is shown


def _verdicts(here: Live, model: PublicModel, facts: Facts) -> Any:
    """Yield what a dry run for each rule that leads to the model says, on a plan that has both."""
    leading = [rule for rule in facts.rules if any(one.model_id == model.pk for one in rule.targets.all())]
    for rule in [one for one in leading if one.is_active][:MOST_VERDICTS]:
        fitting = [one for one in facts.plans if rule.plan in {"", one.plan.slug}]
        if not fitting:
            yield Verdict(rule.name, is_yes=False, text="No plan includes the model for requests of this rule.")
            continue
        kind = "chat" if "chat" in model.kinds else (model.kinds or ["chat"])[0]
        wanted = Wanted(kind=kind, task=rule.task or None, prompt_characters=4 * (rule.min_prompt_tokens or 10))
        try:
            route = dry_run(here, fitting[0], wanted)
        except RoutingError as error:
            yield Verdict(rule.name, is_yes=False, text=error.message)
        else:
            yield _judged(route, rule, model, fitting[0])


_DRAWS = ("the draw by weight chose", "it costs the same: the draw")


def _judged(route: Route, rule: RouteRule, model: PublicModel, version: PlanVersion) -> Verdict:
    if route.model == model.name:
        return Verdict(rule.name, is_yes=True, text=route.reason)
    mine = next((one for one in route.candidates if one.model == model.name and one.rejected), None)
    if route.rule == rule.name and mine is not None and mine.rejected.startswith(_DRAWS):
        return Verdict(rule.name, is_yes=True, text=f"It is drawn by weight beside others, on {version.plan}.")
    why = f" {model.name}: {mine.rejected}." if mine is not None else ""
    return Verdict(rule.name, is_yes=False, text=f"{route.model} is taken: {route.reason}{why}")
