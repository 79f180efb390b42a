"""Rules of auto: in their order with targets, weights and what is wrong with them, beside where a request would go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from billing.models import PlanVersion
from billing.rating import charge, shares
from billing.selectors.prices import BillLine
from control.operate.base import Desk, operator_page
from control.operate.fields import NameField, OperatorForm, models, plan_slugs, tasks
from control.operate.model_rules import conditions_of
from control.operate.models import judged_rules
from control.operate.words import CLASS_WORDS
from control.screens.figures import share
from control.screens.forms import CreditsField
from gateway.generation.dry_run import Wanted, dry_run
from gateway.generation.placement import USUAL_OUTPUT
from gateway.runtime.data_plane import Live, live_of
from inference.types import Kind
from routing.catalogue import IMAGES, ceiling_of
from routing.errors import RoutingError
from routing.findings import Finding
from routing.models import LEAST_SIMILARITY, PublicModel, RouteRule
from routing.places import CHARACTERS_PER_TOKEN, told
from routing.services.rules import (
    MOST_CHARACTERS,
    MOST_EXAMPLES,
    MOST_OF_ALL,
    InvalidExamplesError,
    checked_examples,
    place_rule,
    set_active,
    write_rule,
)
from routing.types import Route
from tenancy.models import Tenant

# -- the list, and a request tried -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule as its row shows it."""

    rule: RouteRule
    about: str
    targets: list[tuple[str, str, str, bool]]  # model, its address, its part, whether it is there
    ceiling: str
    findings: Sequence[Finding]


def _line(rule: RouteRule, findings: Sequence[Finding]) -> RuleLine:
    targets = list(rule.targets.all())
    total = sum(one.weight for one in targets if not one.is_fallback)
    parts = [
        (
            one.model.name,
            reverse("operate-model", args=[one.model_id]),
            "fallback" if one.is_fallback else share(one.weight, total),
            one.model.is_active,
        )
        for one in targets
    ]
    ceiling = ceiling_of(rule)
    return RuleLine(rule, conditions_of(rule), parts, "" if ceiling is None else told(ceiling), findings)


class TryForm(OperatorForm):
    """A request to be routed without running it."""

    plan = NameField(plan_slugs, label="Plan")
    text = forms.CharField(
        max_length=20_000,
        required=False,
        label="What it asks",
        help_text="It is stored nowhere.",
        widget=forms.Textarea(attrs={"rows": 4}),
    )
    model = forms.CharField(
        max_length=120, initial="auto", label="Model", help_text="auto, auto:task, or a name."
    )  # fmt: skip
    task = NameField(tasks, any_label="it doesn’t say")
    tenant = forms.CharField(max_length=80, required=False, help_text="Its short name, for models of its own.")
    kind = forms.ChoiceField(choices=[(kind.value, kind.value) for kind in Kind], initial=Kind.CHAT.value)
    images = forms.ChoiceField(choices=[(name, name) for name in IMAGES], initial=IMAGES[0])
    prompt_tokens = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=10_000_000,
        label="Tokens of prompt",
        help_text="Empty: those of the text.",
    )
    conversation = forms.CharField(
        max_length=120, required=False, label="Its conversation has the model", help_text="Empty: it begins one."
    )
    models = forms.CharField(
        max_length=2_000,
        required=False,
        label="Its key is for",
        help_text="Names with commas; empty: all of the plan’s.",
    )
    tools = forms.BooleanField(required=False, label="It has tools")
    schema = forms.BooleanField(required=False, label="It has a schema")

    MORE = ("model", "task", "tenant", "kind", "images", "prompt_tokens", "conversation", "models", "tools", "schema")

    @property
    def more(self) -> list[forms.BoundField]:
        """The fields that most tries leave as they are."""
        return [self[name] for name in self.MORE]

    @property
    def is_open(self) -> bool:
        """Whether one of these is set or wrong."""
        bound = self.is_bound
        return any(self[name].errors or (bound and self[name].value() != self[name].initial and self[name].value())
                   for name in self.MORE)  # fmt: skip

    def clean_models(self) -> list[str]:
        """Return the names."""
        names = (name.strip() for name in self.cleaned_data["models"].split(","))
        return [name for name in names if name]

    def clean_tenant(self) -> UUID | None:
        """Return the tenant's id."""
        slug = self.cleaned_data["tenant"].strip()
        found = Tenant.objects.filter(slug=slug).values_list("pk", flat=True).first() if slug else None
        if slug and found is None:
            raise ValidationError(f"There is no tenant “{slug}”.")
        return found

    def wanted(self) -> Wanted:
        """Return the request."""
        given = dict(self.cleaned_data)
        tokens = given.pop("prompt_tokens")
        given.pop("plan")
        given.pop("tenant")
        return Wanted(**given, prompt_characters=None if tokens is None else tokens * CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a try: the route with its price lines, or the reason for none."""

    route: Route | None = None
    refused: str = ""
    lines: Sequence[tuple[str, BillLine]] = ()
    total: int = 0
    tokens: int = 0


def tried(live: Live, form: TryForm) -> Tried:
    """Route the form's request without running it."""
    given = form.cleaned_data
    version = PlanVersion.objects.filter(plan__slug=given["plan"]).select_related("plan").order_by("-number").first()
    if version is None:
        return Tried(refused="This plan has no published terms.")
    wanted = form.wanted()
    try:
        route = dry_run(live, version, wanted, given["tenant"])
    except RoutingError as error:
        return Tried(refused=error.message)
    characters = len(wanted.text) if wanted.prompt_characters is None else wanted.prompt_characters
    tokens = -(-characters // CHARACTERS_PER_TOKEN)
    card = live.prices().get(route.rate_card)
    if card is None:
        return Tried(route, tokens=tokens)
    classes = {"input": tokens, "output": USUAL_OUTPUT if wanted.kind == Kind.CHAT else 0}
    parts, rates = shares(classes, card, version.multiplier_bp), card.rates_for(tokens)
    lines = [
        (CLASS_WORDS.get(name, "Request"), BillLine(name, classes.get(name, 0), rates.get(name, 0), part))
        for name, part in parts.items()
    ]
    return Tried(route, "", lines, charge(classes, card, version.multiplier_bp), tokens)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.view_routerule")
def routing(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the rules in their order, and where a request would go now."""
    form = TryForm(request.POST or None)
    found = tried(live_of(request), form) if form.is_valid() else None
    context = desk.context(
        page="routing",
        lines=[_line(rule, findings) for rule, findings in judged_rules().items()],
        form=form,
        tried=found,
        may_change=desk.may("routing.change_routerule"),
        may_add=desk.may("routing.add_routerule"),
    )
    return render(request, "operate/routing.html", context, status=400 if form.errors else 200)


# -- order and state ---------------------------------------------------------------------------------------------------


@require_POST
@operator_page("routing.change_routerule")
def place(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Move a rule up or down, or before the one that it was dropped on; `before` "" is the end."""
    rows = list(RouteRule.objects.order_by("priority", "name"))
    rule = get_object_or_404(RouteRule, pk=pk)
    at = next(number for number, one in enumerate(rows) if one.pk == rule.pk)
    move = request.POST.get("move", "")
    before: RouteRule | None
    if move == "up":
        before = rows[max(at - 1, 0)]
    elif move == "down":
        before = rows[at + 2] if at + 2 < len(rows) else None
    else:
        named = request.POST.get("before", "")
        before = next((one for one in rows if str(one.pk) == named), None)
        if named and before is None:
            messages.error(request, "The order has changed meanwhile: look at it again.")
            return redirect("operate-routing")
    if before is None or before.pk != rule.pk:
        place_rule(rule, before)
    return redirect(f"{reverse('operate-routing')}#rule-{rule.pk}")


@require_POST
@operator_page("routing.change_routerule")
def switch(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Switch a rule on or off."""
    rule = get_object_or_404(RouteRule, pk=pk)
    try:
        set_active(rule, is_active="on" in request.POST)
    except InvalidExamplesError as error:
        messages.error(request, f"{rule.name} stays off: {error}")
    return redirect(f"{reverse('operate-routing')}#rule-{rule.pk}")


# -- a rule ------------------------------------------------------------------------------------------------------------


class RuleForm(OperatorForm):
    """The conditions of a rule, examples of its requests, and ceilings of its models' cost."""

    name = forms.CharField(max_length=80)
    is_active = forms.BooleanField(required=False, initial=True, label="On")
    plan = NameField(plan_slugs, any_label="any plan")
    task = NameField(tasks, any_label="any task", help_text="SLUICE_TASKS lists them.")
    structure = forms.ChoiceField(
        choices=[("", "anything"), *RouteRule.Structure.choices],
        required=False,
        label="What the request has",
        help_text="With a task: requests that have it and don’t say their task are for that.",
    )
    min_prompt_tokens = forms.IntegerField(required=False, min_value=0, label="Prompt from", help_text="Tokens.")
    max_prompt_tokens = forms.IntegerField(required=False, min_value=0, label="Prompt up to", help_text="Tokens.")
    examples = forms.CharField(
        required=False,
        label="Examples of the task",
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text=f"Requests as people write them, one a line: at most {MOST_EXAMPLES}, of at most {MOST_CHARACTERS}"
        f" characters, {MOST_OF_ALL} of all rules together. A request that doesn’t say its task and comes near to one"
        " is taken to be for the rule’s task.",
    )
    least_similarity = forms.IntegerField(
        min_value=1,
        max_value=100,
        initial=LEAST_SIMILARITY,
        label="Least likeness",
        help_text="Per cent: what is less like its nearest example is left to the plan’s default task.",
    )
    max_price = CreditsField(required=False, label="Most per million tokens of output", help_text="Credits.")
    max_request_price = CreditsField(
        required=False, label="Most per request", help_text="Credits, as far as it can be told."
    )
    max_ttft_ms = forms.IntegerField(
        required=False, min_value=1, label="Longest until the first token", help_text="Milliseconds, of late requests."
    )
    ttft_percentile = forms.TypedChoiceField(
        choices=[(50, "half of them (p50)"), (90, "nine of ten (p90)")], coerce=int, initial=50, label="Held by"
    )
    beyond_ceiling = forms.ChoiceField(
        choices=RouteRule.BeyondCeiling.choices, label="Where no model holds it", initial="refuse"
    )

    WHEN = ("plan", "task", "structure", "min_prompt_tokens", "max_prompt_tokens")
    TASK = ("examples", "least_similarity")
    CEILING = ("max_price", "max_request_price", "max_ttft_ms", "ttft_percentile", "beyond_ceiling")

    def __init__(self, data: Any = None, *, rule: RouteRule) -> None:
        initial = {}
        if not rule._state.adding:  # noqa: SLF001 - documented
            initial = {name: getattr(rule, name) for name in self.base_fields}
            initial["examples"] = "\n".join(rule.examples)
        super().__init__(data, initial=initial)
        self.rule = rule
        for name in ("plan", "task"):  # one that is named and isn't there stays until it is changed
            field: Any = self.fields[name]
            if (named := getattr(rule, name)) and named not in dict(field.choices):
                field.choices = [*field.choices, (named, f"{named} (there is none)")]

    def clean(self) -> dict[str, Any]:
        """Check the examples; those of an active rule count towards all rules' together."""
        given: dict[str, Any] = super().clean() or {}
        examples = [line.strip() for line in given.get("examples", "").splitlines() if line.strip()]
        given["examples"] = examples
        if examples:
            if not given.get("task"):
                self.add_error("task", "A rule with examples is for a task: choose the one that they are for.")
            try:
                given["examples"] = checked_examples(examples, given.get("task") or "", besides=self.rule.pk)
            except InvalidExamplesError as error:
                self.add_error("examples", str(error))
        least, most = given.get("min_prompt_tokens"), given.get("max_prompt_tokens")
        if least is not None and most is not None and least > most:
            self.add_error("max_prompt_tokens", "No prompt has fewer tokens than the least.")
        return given

    def group(self, names: Sequence[str]) -> list[forms.BoundField]:
        """Return fields by their names."""
        return [self[name] for name in names]

    @property
    def has_ceiling(self) -> bool:
        """Whether it has one, or one is wrong."""
        return any(self[name].value() for name in self.CEILING[:3]) or any(self[name].errors for name in self.CEILING)


class TargetForm(OperatorForm):
    """A model that a rule may choose; without a name none."""

    model = forms.CharField(
        max_length=120, required=False, widget=forms.TextInput(attrs={"list": "models", "spellcheck": "false"})
    )
    weight = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    is_fallback = forms.BooleanField(required=False, label="Only as fallback")

    def clean_model(self) -> PublicModel | None:
        """Return the model."""
        name = self.cleaned_data["model"].strip()
        found = PublicModel.objects.filter(name=name).first() if name else None
        if name and found is None:
            raise ValidationError(f"There is no model “{name}”.")
        return found


class TargetFormSet(forms.BaseFormSet):  # type: ignore[type-arg] # can't be subscripted when it runs
    """The models of a rule, each once."""

    def clean(self) -> None:
        """Refuse a model that is named twice."""
        named = [form.cleaned_data.get("model") for form in self.forms if form.is_valid()]
        names = [one.name for one in named if one is not None]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValidationError(f"{twice} stands here twice.")

    def targets(self) -> list[tuple[PublicModel, int, bool]]:
        """Return the models with weight and whether they are fallbacks."""
        given = [form.cleaned_data for form in self.forms if form.cleaned_data.get("model")]
        return [(one["model"], one["weight"] or 1, one["is_fallback"]) for one in given]


_SPARE = 2
_Targets = forms.formset_factory(TargetForm, formset=TargetFormSet, extra=_SPARE, max_num=64, validate_max=True)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.add_routerule")
def new(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Make a rule; `model` is one that it leads to."""
    rule = RouteRule()
    name = request.GET.get("model", "")
    return _edited(request, desk, rule, [{"model": name, "weight": 1}] if name else [])


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.view_routerule")
def rule(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show a rule, change it."""
    row = get_object_or_404(RouteRule.objects.prefetch_related("targets__model"), pk=pk)
    targets = [
        {"model": one.model.name, "weight": one.weight, "is_fallback": one.is_fallback}
        for one in sorted(row.targets.all(), key=lambda one: (one.is_fallback, -one.weight, one.model.name))
    ]
    return _edited(request, desk, row, targets)


def _edited(request: HttpRequest, desk: Desk, rule: RouteRule, initial: list[dict[str, Any]]) -> HttpResponse:
    may_change = desk.may("routing.change_routerule")
    is_sent = request.method == "POST" and may_change
    is_new = rule._state.adding  # noqa: SLF001 - documented
    form = RuleForm(request.POST if is_sent else None, rule=rule)
    targets: Any = _Targets(request.POST if is_sent else None, initial=initial, prefix="targets")
    if is_sent and form.is_valid() & targets.is_valid():
        for name, value in form.cleaned_data.items():
            setattr(rule, name, value)
        try:
            write_rule(rule, targets.targets(), is_last=is_new)
        except ValidationError as error:
            form.refuse(error)
        else:
            messages.success(request, f"The rule “{rule.name}” is saved.")
            return redirect(f"{reverse('operate-routing')}#rule-{rule.pk}")
    context = desk.context(
        page="routing",
        rule=None if is_new else rule,
        form=form,
        when=form.group(RuleForm.WHEN),
        task=form.group(RuleForm.TASK),
        ceiling=form.group(RuleForm.CEILING),
        targets=targets,
        models=models(),
        may_change=may_change,
        may_delete=desk.may("routing.delete_routerule"),
    )
    return render(
        request,
        "operate/rule.html",
        context,
        status=400 if form.errors or (not targets.is_valid() and is_sent) else 200,
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("routing.delete_routerule")
def delete(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Delete a rule once its name is typed."""
    row = get_object_or_404(RouteRule.objects.prefetch_related("targets__model"), pk=pk)
    wrong = ""
    if request.method == "POST":
        if request.POST.get("name", "").strip() == row.name:
            for target in row.targets.all():
                target.delete()
            row.delete()
            messages.success(request, f"The rule “{row.name}” is deleted.")
            return redirect("operate-routing")
        wrong = f"Type {row.name} to confirm."
    context = desk.context(page="routing", rule=row, about=conditions_of(row), wrong=wrong)
    return render(request, "operate/rule_delete.html", context, status=400 if wrong else 200)
