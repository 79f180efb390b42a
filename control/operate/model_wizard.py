"""Adding a model, step by step: its source, the proof that it answers, its price, its plans, its rules.

Each step is a page of its own and is done or not by what the rows say, so it can be left, come back to and done again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from base.errors import ServiceError
from base.sealing import SealError, seal, unseal
from billing.costs import CostRates
from billing.models import PlanVersion
from billing.rating import CLASSES, WHOLE_BP, CardPrices
from billing.selectors.costs import calibrated
from billing.selectors.plans import tenants_by_plan
from billing.services import cards, plan_moves
from billing.services.cards import DEFAULT_RATES
from billing.services.errors import CreditError, PlanError
from billing.services.plan_models import include_models
from billing.services.plans import latest_versions
from control.operate.base import Desk, operator_page
from control.operate.fields import CreditsField, NameField, NamesField, OperatorForm, rate_cards
from control.operate.model_states import Standing, card_of, standing_of, thousand
from control.operate.models import Rules, auto_of, catalogue_rows, fetch_word, judged_rules
from control.operate.prices import LIST_NAME
from control.operate.words import CLASS_WORDS
from control.screens.tables import State
from fleet import fetches
from fleet.remote_models import Added, add_remote_model, listed_models, try_again
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import DeploymentState, Live, live_of
from inference.open import remote_dialects
from inference.types import Kind
from routing.errors import RoutingError
from routing.models import Deployment, Fetch, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import change_model
from routing.services.defaults import ensure_default_routes
from routing.services.rules import write_rule
from routing.types import Route

QUANTIZATIONS = [
    ("", "none: the checkpoint’s own precision"),
    ("w8a8", "eight bits (w8a8): about twice as fast, answers differ a little"),
    ("int4", "weights in four bits (int4), on a processor: fastest for few at once, answers differ more"),
    ("fp8", "eight-bit floating point (fp8), on a GPU that has it"),
]


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
    """What the steps look at: engines, price, plans that include it, rules that lead to it."""

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
    plans = [one for one in versions if not one.allowed_models or model.name in one.allowed_models]
    standing = standing_of(live, states, prices, model)
    card = prices.get(card_of(model))
    return Facts(standing, answers, card, versions, plans, rules, auto_of(model.name, rules), states)


def _page(
    request: HttpRequest, desk: Desk, step: str, model: PublicModel | None, *, facts: Facts | None = None, **more: Any
) -> HttpResponse:
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


def _model(pk: UUID) -> PublicModel:
    found: PublicModel = get_object_or_404(catalogue_rows(), pk=pk, is_active=True, tenant=None)
    return found


# -- source ------------------------------------------------------------------------------------------------------------


class SourceForm(OperatorForm):
    """Weights that this machine serves itself."""

    renamed = {"options": "source"}

    source = forms.CharField(
        max_length=500,
        label="Hub id, folder or GGUF file",
        help_text="Such as Qwen/Qwen2.5-0.5B-Instruct (also …@revision), /srv/models/qwen, or /srv/models/qwen.gguf.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none"}),
    )
    name = forms.CharField(
        max_length=120, required=False, help_text="As tenants ask for it. Empty: the folder’s, file’s or hub id’s."
    )
    quantization = forms.ChoiceField(
        choices=QUANTIZATIONS, required=False, help_text="Where this machine has kernels for it."
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def new(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Ask for the weights of a model, and have them fetched."""
    form = SourceForm(request.POST or None)
    if form.is_valid():
        given = form.cleaned_data
        options = {"quantization": given["quantization"]} if given["quantization"] else {}
        try:
            fetch = fetches.ask(
                source=given["source"], name=given["name"].strip(), options=options, asked_by=desk.user.email
            )
        except ServiceError as error:
            form.refuse(error)
        else:
            return redirect("operate-model-fetch", fetch.pk)
    return _page(request, desk, "source", None, form=form, kind="here", fetches=fetches.under_way())


class RemoteForm(OperatorForm):
    """A server and the model that it has; what it lists is offered once it was asked."""

    address = forms.CharField(
        max_length=500,
        help_text="Such as http://10.0.0.5:8000 or https://api.example.com.",
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false", "autocapitalize": "none"}),
    )
    api_key = forms.CharField(
        required=False,
        label="API key",
        help_text="Stored encrypted, and never shown. Empty: none.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    kept_key = forms.CharField(required=False, widget=forms.HiddenInput)
    dialect = forms.ChoiceField(
        choices=lambda: [(name, name) for name in remote_dialects()],
        required=False,
        initial="generic",
        label="Kind of server",
        help_text="generic: any that has OpenAI’s endpoints.",
    )
    model = forms.CharField(
        max_length=200,
        required=False,
        label="Its model",
        help_text="As the server calls it.",
        widget=forms.TextInput(attrs={"list": "listed", "spellcheck": "false"}),
    )
    name = forms.CharField(
        max_length=120,
        required=False,
        label="Public name",
        help_text="As tenants ask for it. Empty: the server’s. A model that exists gets one more deployment.",
    )
    kinds = NamesField(lambda: [kind.value for kind in Kind], label="For", initial=[Kind.CHAT.value], required=False)
    shared_prefixes = forms.BooleanField(
        required=False,
        label="Tenants may share its prefix cache",
        help_text="TGI and generic servers keep one cache for everybody: how fast an answer begins can tell one tenant "
        "what another has asked. Tick this to accept that.",
    )
    max_context = forms.IntegerField(
        required=False, min_value=1, label="Context", help_text="Tokens, where the server doesn’t say."
    )
    max_output = forms.IntegerField(
        required=False,
        min_value=1,
        label="Most output of one request",
        help_text="Tokens, 4,096 if empty: credit for all of them is held at once.",
    )
    concurrency = forms.IntegerField(
        required=False,
        min_value=1,
        label="Requests at once",
        help_text="Of one gateway, 64 if empty; others wait, tenants in turn.",
    )

    NUMBERS = ("max_context", "max_output", "concurrency")

    def key(self) -> str:
        """Return the API key: as typed, or as it was typed for this very address on the page before."""
        typed: str = self.cleaned_data["api_key"]
        if typed or not self.cleaned_data["kept_key"]:
            return typed
        try:
            address, key = json.loads(unseal(self.cleaned_data["kept_key"]))
        except (SealError, ValueError):
            return ""
        return key if address == self.cleaned_data["address"] else ""

    def keep_key(self) -> str:
        """Return the key so that the next page can hold it: sealed, for this address alone."""
        return seal(json.dumps([self.cleaned_data["address"], self.key()])) if self.key() else ""

    def options(self) -> dict[str, Any]:
        """Return the options that were given."""
        given = {name: self.cleaned_data[name] for name in self.NUMBERS if self.cleaned_data[name] is not None}
        return given | ({"shared_prefixes": True} if self.cleaned_data["shared_prefixes"] else {})


@sensitive_post_parameters("api_key", "kept_key")
@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def new_remote(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Ask for a server, offer what it lists, and add the chosen model once a test prompt is answered."""
    form = RemoteForm(request.POST or None)
    found: list[Any] = []
    if form.is_valid():
        given = form.cleaned_data
        wants_list, kept_key = "list" in request.POST or not given["model"], form.keep_key()
        try:
            if wants_list:
                found = listed_models(address=given["address"], api_key=form.key())
            else:
                added = add_remote_model(
                    address=given["address"],
                    dialect=given["dialect"] or "generic",
                    model=given["model"],
                    name=given["name"].strip(),
                    kinds=given["kinds"] or [Kind.CHAT.value],
                    api_key=form.key(),
                    options=form.options(),
                    priced=False,
                )
                _tell(request, added)
                return redirect("operate-model-proof", added.deployment.model.pk)
        except ServiceError as error:
            form.refuse(error)
        shown = request.POST.copy()
        shown["kept_key"] = kept_key
        if found and not given["model"]:
            shown["model"] = found[0].name
            shown["dialect"] = found[0].dialect or given["dialect"] or "generic"
        refused = dict(form.errors)
        form = RemoteForm(shown)
        form.errors.clear()
        form.errors.update(refused)  # as they were found
    return _page(request, desk, "source", None, form=form, kind="remote", listed=found)


def _tell(request: HttpRequest, added: Added) -> None:
    """Show what a server announced, and its test prompts."""
    info = added.tried.info
    if info.shares_prefixes:
        messages.warning(request, "Tenants share this server’s prefix cache, as was accepted.")
    messages.success(request, f"{added.deployment.name} answers: context {info.max_context:,} tokens.")
    for trial in added.tried.trials:
        messages.info(request, f"Test prompt ({trial.kind}): {trial.usage.prompt} tokens in, "
                      f"{trial.usage.completion} out, {trial.milliseconds} ms.")  # fmt: skip


# -- fetch and proof ---------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def fetch(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show how far a fetch is; stop it, or have it tried again."""
    row = get_object_or_404(Fetch.objects.select_related("model"), pk=pk)
    if request.method == "POST":
        (fetches.stop if "stop" in request.POST else fetches.again)(row)
        return redirect("operate-model-fetch", row.pk)
    if row.state == Fetch.State.DONE and row.model is not None and "HX-Request" not in request.headers:
        return redirect("operate-model-proof", row.model.pk)
    steps = steps_of("proof", None, None)
    steps[0] = Step("source", "Source", reverse("operate-model-new"), is_done=True, is_here=False)
    context = desk.context(page="models", steps=steps, fetch=row, word=fetch_word(row))
    answer = render(request, "operate/model_fetch.html", context)
    if row.state == Fetch.State.DONE and row.model is not None:
        answer.headers["HX-Redirect"] = reverse("operate-model-proof", args=[row.model.pk])
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.view_publicmodel", "routing.add_deployment")
def proof(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show whether the model's engines answer, and send a foreign server another test prompt."""
    model = _model(pk)
    if request.method == "POST":
        found = Deployment.objects.filter(model=model, backend="openai")
        deployment = next((one for one in found if str(one.pk) == request.POST.get("deployment")), None)
        if deployment is None:
            raise Http404
        try:
            _tell(request, try_again(deployment))
        except ServiceError as error:
            messages.error(request, error.message)
        return redirect("operate-model-proof", model.pk)
    facts = facts_of(live_of(request), model)
    lines = [_proven(one, (facts.states or {}).get(one.pk), facts) for one in model.deployments.all() if one.is_active]
    return _page(request, desk, "proof", model, facts=facts, lines=lines)


def _proven(row: Deployment, known: DeploymentState | None, facts: Facts) -> tuple[Deployment, State, str]:
    """Return a deployment with how its engines are, their price left aside."""
    if facts.states is None:
        return row, State("unknown"), "No gateway answers: its state is known once one runs."
    if known is None:
        return row, State("waits", "warn"), "The gateway opens it within seconds."
    told = [
        ": ".join(filter(None, (one.node, one.engine or "ready", one.detail if one.engine else "")))
        for one in known.replicas
    ]
    if any(not one.engine and one.context for one in known.replicas):
        return row, State("answers", "good"), "; ".join(told)
    loads = any("load" in one.engine for one in known.replicas)
    return row, State("loading", "warn") if loads else State("not ready", "bad"), "; ".join(told)


# -- price -------------------------------------------------------------------------------------------------------------


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
        """Ask for what the chosen way needs."""
        given: dict[str, Any] = super().clean() or {}
        if given.get("how") == "card" and not given.get("card"):
            self.add_error("card", "Choose the price list.")
        for name in ("input", "output") if given.get("how") == "own" else ():
            if given.get(name) is None and name not in self.errors:
                self.add_error(name, "Say what it costs; 0 is free.")
        return given


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.change_publicmodel")
def price(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Give the model a price: never one that nobody chose."""
    model = _model(pk)
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
    return _page(
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


# -- plans and rules ---------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.view_publicmodel", "billing.view_plan")
def plans(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Put the model into plans: a new version of each, to which its tenants move if that is wanted."""
    model, may_add = _model(pk), desk.may("billing.add_planversion")
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
    return _page(request, desk, "plans", model, facts=facts, lines=lines, **may)


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


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.view_publicmodel", "routing.view_routerule")
def rules(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Lead rules of auto to the model."""
    model, may_change = _model(pk), desk.may("routing.change_routerule")
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
    return _page(request, desk, "rules", model, facts=facts, lines=lines, wrong=wrong, may_change=may_change)


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
    """Write the chosen rules; return what is wrong."""
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


# -- live --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether auto takes the model for a request of a rule, in a sentence."""

    rule: str
    is_yes: bool
    text: str


@require_safe
@operator_page("routing.view_publicmodel")
def live(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Say whether auto uses the model, and what a thousand tokens cost."""
    model, here = _model(pk), live_of(request)
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
    return _page(
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
