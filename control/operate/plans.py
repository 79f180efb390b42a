"""Plans: their terms side by side, who has them, new versions, and all tenants of one moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_http_methods, require_safe

from base.units import format_credits
from billing import promises
from billing.models import Plan, PlanMove, PlanVersion
from billing.selectors.plans import tenants_by_plan
from billing.services import plan_moves, plans
from billing.services.errors import PlanError
from control.operate.base import Desk, operator_page
from control.operate.fields import NameField, NamesField, OperatorForm, models_of_plans, plan_slugs, tasks
from control.screens.forms import CreditsField
from control.screens.tables import Column, Row, Table

_PERIODS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def _period(seconds: int) -> str:
    """Return a period in words: a minute, 5 hours."""
    for size, word in _PERIODS:
        if seconds % size == 0:
            count = seconds // size
            return f"{'an' if word == 'hour' else 'a'} {word}" if count == 1 else f"{count:,} {word}s"
    return f"{seconds} s"


def _credits(micro: int) -> str:
    return format_credits(micro, separator=",")


def terms_of(version: PlanVersion) -> list[tuple[str, str]]:
    """Return the terms of a version in words, those first that plans differ in."""
    models = ", ".join(version.allowed_models) or "all, also those to come"
    overdraft = "refused"
    if version.overage != PlanVersion.Overage.BLOCK:
        overdraft = f"served down to {_credits(version.overdraft_limit)} credits below zero"
        overdraft += ", invoiced each month" if version.overage == PlanVersion.Overage.INVOICE else ""
    limit = f"{version.request_limit:,} {_period(version.request_period_s)}, {version.request_burst:,} at once"
    spent = (
        f"{_credits(version.credit_limit)} {_period(version.credit_period_s)}, {_credits(version.credit_burst)} at once"
    )
    tokens = "any number"
    if version.token_limit is not None:
        burst = version.token_burst or version.token_limit
        tokens = f"{version.token_limit:,} {_period(version.token_period_s)}, {burst:,} at once"
    tiers = f"flex × {version.flex_bp / 10_000:g}, priority × {version.priority_bp / 10_000:g}"
    return [
        ("Credits a month", _credits(version.monthly_credits)),
        ("Requests", limit),
        ("Requests that run at once", f"{version.concurrency:,}"),
        ("Models", models),
        ("Credits spent", spent),
        ("Tokens", tokens),
        ("Prices times", f"{version.multiplier_bp / 10_000:g}"),
        ("And in service tiers", tiers),
        ("Promise", promises.terms_in_words(version) or "none"),
        ("Without credit", overdraft),
        ("Credit that rolls over", f"{_credits(version.rollover)} for one month more" if version.rollover else "none"),
        ("Adapters of its own", f"{version.adapters:,}"),
        ("Share of engines", f"{version.weight / 1_000:g}"),
        ("Priority", f"{version.priority}"),
        ("Task of auto where none is found", version.default_task),
        ("Output that a hold covers ahead", f"{version.slice_tokens:,} tokens"),
        ("An answer goes on unread for", f"{version.resume_s:,} s"),
    ]


FIRST = 4  # of the terms, which a card shows


@dataclass(frozen=True, slots=True)
class PlanCard:
    """A plan with its newest terms and how many tenants have it, on older terms too."""

    plan: Plan
    version: PlanVersion | None
    tenants: int
    older: int

    @property
    def first(self) -> list[tuple[str, str]]:
        """The terms that plans differ in most."""
        return [] if self.version is None else terms_of(self.version)[:FIRST]


def plan_cards() -> list[PlanCard]:
    """Return all plans by their monthly credit, those that aren't offered last."""
    newest, counts = {one.plan_id: one for one in plans.latest_versions()}, tenants_by_plan()
    found = []
    for plan in Plan.objects.order_by("name"):
        version, mine = newest.get(plan.pk), counts.get(plan.pk, {})
        older = sum(count for number, count in mine.items() if version is None or number != version.number)
        found.append(PlanCard(plan, version, sum(mine.values()), older))
    rank = {True: 0, False: 1}
    return sorted(found, key=lambda one: (rank[one.plan.is_offered], one.version.monthly_credits if one.version else 0))


def tenants_with(slug: str) -> str:
    """Return where the tenants of a plan are listed."""
    try:
        return f"{reverse('operate-tenants')}?plan={slug}"
    except NoReverseMatch:
        return f"/operate/tenants/?plan={slug}"


@require_safe
@operator_page("billing.view_plan")
def listing(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show all plans as cards, and two side by side where `a` and `b` choose them."""
    cards = plan_cards()
    chosen = [one for slug in (request.GET.get("a"), request.GET.get("b")) for one in cards if one.plan.slug == slug]
    context = desk.context(
        page="plans",
        cards=[(one, tenants_with(one.plan.slug)) for one in cards],
        chosen=chosen,
        comparison=_comparison(chosen) if len(chosen) == 2 else None,
        may_add=desk.may("billing.add_plan"),
    )
    return render(request, "operate/plans.html", context)


def _cut(name: str) -> str:
    """Return a name that doesn't widen the head of a column."""
    return name if len(name) <= 24 else f"{name[:23]}…"


def _comparison(chosen: Sequence[PlanCard]) -> Table:
    """Return two plans' terms in a table, equal ones paler."""
    columns = [Column("Term", "name"), *(Column(_cut(one.plan.name), "wraps") for one in chosen)]
    left, right = (dict(terms_of(one.version)) if one.version else {} for one in chosen)
    names = list(left or right)
    rows = [
        Row([name, left.get(name, "–"), right.get(name, "–")], is_over=left.get(name) == right.get(name))
        for name in names
    ]
    rows.append(Row(["Tenants", *(f"{one.tenants:,}" for one in chosen)]))
    return Table("Side by side", columns, rows)


@require_safe
@operator_page("billing.view_plan")
def plan(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show one plan: its terms, its versions with who has them, and a move of its tenants while one goes on."""
    row = get_object_or_404(Plan, slug=slug)
    versions = list(row.versions.order_by("-number")[:50])
    counts = tenants_by_plan().get(row.pk, {})
    moves = list(PlanMove.objects.filter(plan=row).select_related("to").order_by("-created_at")[:1])
    columns = [
        Column("Version", "name"), Column("Tenants", "number"), Column("Credits a month", "credits"),
        Column("Since", "time"), Column("What changed", "wraps"),
    ]  # fmt: skip
    rows = [
        Row([f"v{one.number}", counts.get(one.number, 0), one.monthly_credits, one.created_at, _changed(one, before)])
        for one, before in zip(versions, [*versions[1:], None], strict=True)
    ]
    older = sum(count for number, count in counts.items() if not versions or number != versions[0].number)
    context = desk.context(
        page="plans",
        plan=row,
        version=versions[0] if versions else None,
        terms=terms_of(versions[0]) if versions else [],
        table=Table("Versions", columns, rows, "It has no terms yet: publish the first version."),
        tenants=sum(counts.values()),
        older=older,
        tenants_href=tenants_with(slug),
        move=moves[0] if moves else None,
        may_publish=desk.may("billing.add_planversion"),
        may_change=desk.may("billing.change_plan"),
        may_move=desk.may("billing.change_subscription"),
    )
    return render(request, "operate/plan.html", context)


def _changed(version: PlanVersion, before: PlanVersion | None) -> str:
    if before is None:
        return ""
    had = dict(terms_of(before))
    return "; ".join(f"{name}: {had[name]} → {text}" for name, text in terms_of(version) if had[name] != text)[:400]


# -- new plans and new versions ----------------------------------------------------------------------------------------


class PlanForm(OperatorForm):
    """A plan's name, and whether it is offered."""

    name = forms.CharField(max_length=80)
    slug = forms.SlugField(max_length=40, label="Short name", help_text="In rules, commands and the API. It stays.")
    is_offered = forms.BooleanField(required=False, initial=True, label="Offered to new tenants")

    def clean_slug(self) -> str:
        """Return the short name, which is a part of the plan's address."""
        slug: str = self.cleaned_data["slug"]
        if slug == "new":
            raise forms.ValidationError("“new” is the address of this form: choose another name.")
        return slug


class PlanChangeForm(OperatorForm):
    """The fields of a plan that change without new terms."""

    name = forms.CharField(max_length=80)
    is_offered = forms.BooleanField(required=False, label="Offered to new tenants")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.add_plan", "billing.add_planversion")
def new(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Make a plan; its first terms follow."""
    form = PlanForm(request.POST or None)
    if form.is_valid():
        made = Plan(**form.cleaned_data)
        try:
            made.full_clean()
        except ValidationError as error:
            form.refuse(error)
        else:
            made.save(force_insert=True)
            return redirect("operate-plan-publish", made.slug)
    context = desk.context(
        page="plans", form=form, title="New plan", back=reverse("operate-plans"), button="Next: terms"
    )
    return render(request, "operate/plan_form.html", context, status=400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.change_plan")
def edit(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Change a plan's name, and whether it is offered."""
    row = get_object_or_404(Plan, slug=slug)
    form = PlanChangeForm(request.POST or None, initial={"name": row.name, "is_offered": row.is_offered})
    if form.is_valid():
        row.name, row.is_offered = form.cleaned_data["name"], form.cleaned_data["is_offered"]
        row.save(update_fields=["name", "is_offered"])
        messages.success(request, f"{row.name} is changed.")
        return redirect("operate-plan", slug)
    back = reverse("operate-plan", args=[slug])
    context = desk.context(page="plans", form=form, title=f"Change {row.name}", back=back, button="Save")
    return render(request, "operate/plan_form.html", context, status=400 if form.errors else 200)


def _factor(label: str, help_text: str, initial: int = 1, most: int = 100, **options: Any) -> forms.DecimalField:
    terms: dict[str, Any] = {"min_value": 0, "max_value": most, "decimal_places": 4, "initial": initial, **options}
    return forms.DecimalField(label=label, help_text=help_text, **terms)


_FACTORS = {
    "multiplier_bp": "multiplier",
    "flex_bp": "flex",
    "priority_bp": "priority_times",
    "promise_credit_bp": "promise_share",
}


class TermsForm(OperatorForm):
    """All terms of a version: four in sight, the others with their defaults."""

    monthly_credits = CreditsField(label="Credits a month", help_text="Granted at the start of each month.")
    request_limit = forms.IntegerField(min_value=1, label="Requests a period", help_text="A minute, unless set below.")
    concurrency = forms.IntegerField(min_value=1, label="Requests that run at once")
    allowed_models = NamesField(
        models_of_plans, required=False, label="Models", help_text="None chosen: all, also those to come."
    )
    request_period_s = forms.IntegerField(min_value=1, initial=60, label="Period of requests", help_text="Seconds.")
    request_burst = forms.IntegerField(
        min_value=1, required=False, label="Requests in one go", help_text="Empty: as many as in a period."
    )
    credit_limit = CreditsField(label="Credits spent a period", help_text="So that nobody takes all engines at once.")
    credit_period_s = forms.IntegerField(min_value=1, initial=60, label="Period of credits", help_text="Seconds.")
    credit_burst = CreditsField(required=False, label="Credits in one go", help_text="Empty: as many as in a period.")
    token_limit = forms.IntegerField(
        min_value=1, required=False, label="Tokens a period", help_text="Cached ones don’t count. Empty: any number."
    )
    token_period_s = forms.IntegerField(min_value=1, initial=60, label="Period of tokens", help_text="Seconds.")
    token_burst = forms.IntegerField(
        min_value=1, required=False, label="Tokens in one go", help_text="Empty: as many as in a period."
    )
    multiplier = _factor("Prices times", "0.8 is 20 % off.")
    flex = _factor("Flex requests times", "They run when nobody else’s wait.")
    priority_times = _factor("Priority requests times", "They go before the tenant’s others.")
    promised_ttft_ms = forms.IntegerField(
        min_value=1, required=False, label="First token promised within", help_text="Milliseconds. Empty: no promise."
    )
    promised_ttft_per_1k_ms = forms.IntegerField(
        min_value=0,
        required=False,
        initial=0,
        label="And longer for long prompts",
        help_text="Milliseconds for each 1,000 tokens that aren’t cached.",
    )
    promised_rate = forms.IntegerField(
        min_value=1, required=False, label="Tokens a second promised", help_text="Empty: no promise."
    )
    promised_rate_from = forms.IntegerField(
        min_value=2,
        required=False,
        initial=64,
        label="In answers from",
        help_text="Tokens: a short one tells no speed.",
    )
    promise_share = _factor(
        "A miss gives back", "Share of the charge: 0.25 is a quarter.", initial=0, most=1, required=False
    )
    promise_cap = CreditsField(
        required=False, label="At most a month", help_text="Credits that misses give back. Empty: any."
    )
    overage = forms.ChoiceField(
        choices=[
            ("block", "Requests are refused"),
            ("overdraft", "They are served down to the overdraft"),
            ("invoice", "They are served down to the overdraft, and invoiced each month"),
        ],
        label="Without credit",
    )
    overdraft_limit = CreditsField(required=False, label="Overdraft", help_text="Credits below zero.")
    rollover = CreditsField(
        required=False,
        label="Credit that rolls over",
        help_text="At most so much of what a month leaves lasts for one more. Empty: none.",
    )
    adapters = forms.IntegerField(min_value=0, initial=0, label="Adapters of its own", help_text="Of each tenant.")
    weight = forms.IntegerField(
        min_value=1, initial=1000, label="Share of engines", help_text="In thousandths: 2000 gets twice as much."
    )
    priority = forms.IntegerField(
        min_value=-32768, max_value=32767, initial=0, help_text="Higher ones wait for no lower one."
    )
    default_task = NameField(tasks, initial="chat", label="Task of auto where none is found")
    slice_tokens = forms.IntegerField(
        min_value=1, initial=256, label="Output that a hold covers ahead", help_text="Tokens."
    )
    resume_s = forms.IntegerField(min_value=0, initial=60, label="An answer goes on unread for", help_text="Seconds.")

    FIRST = ("monthly_credits", "request_limit", "concurrency", "credit_limit")
    LAST = (
        *("request_period_s", "request_burst", "credit_period_s", "credit_burst", "token_limit", "token_period_s"),
        *("token_burst", "multiplier", "flex", "priority_times"),
        *("promised_ttft_ms", "promised_ttft_per_1k_ms", "promised_rate", "promised_rate_from", "promise_share"),
        *("promise_cap", "overage"),
        *("overdraft_limit", "rollover", "adapters", "weight", "priority", "default_task", "slice_tokens", "resume_s"),
    )
    renamed = _FACTORS

    @property
    def first(self) -> list[forms.BoundField]:
        """The terms that every plan decides."""
        return [self[name] for name in self.FIRST]

    @property
    def rest(self) -> list[forms.BoundField]:
        """The terms that most plans leave as they are."""
        return [self[name] for name in self.LAST]

    @property
    def is_open(self) -> bool:
        """Whether one of these is wrong."""
        return any(self[name].errors for name in self.LAST)

    def terms(self) -> dict[str, Any]:
        """Return all terms as the service takes them."""
        given = dict(self.cleaned_data)
        given |= {name: int((given.pop(factor) or 0) * 10_000) for name, factor in _FACTORS.items()}
        for name in ("promised_ttft_per_1k_ms", "promised_rate_from"):
            given[name] = self.fields[name].initial if given[name] is None else given[name]
        given["request_burst"] = given["request_burst"] or given["request_limit"]
        given["credit_burst"] = given["credit_limit"] if given["credit_burst"] is None else given["credit_burst"]
        given["overdraft_limit"] = given["overdraft_limit"] or 0
        return given


def _initial(version: PlanVersion | None) -> dict[str, Any]:
    if version is None:
        return {}
    terms = {name: getattr(version, name) for name in plans.TERMS}
    return terms | {factor: terms[name] / 10_000 for name, factor in _FACTORS.items()}


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.add_planversion")
def publish(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Publish a new version of a plan, begun with the terms of the last one."""
    row = get_object_or_404(Plan, slug=slug)
    last = row.versions.order_by("-number").first()
    form = TermsForm(request.POST or None, initial=_initial(last))
    if form.is_valid():
        try:
            with transaction.atomic():
                made = plans.publish_version(row, **form.terms())
        except (PlanError, ValidationError, ValueError) as error:
            form.refuse(error)
        else:
            messages.success(
                request, f"{made} is published. Tenants keep the terms that they have until they are moved."
            )
            return redirect("operate-plan", slug)
    tenants = sum(tenants_by_plan().get(row.pk, {}).values())
    context = desk.context(page="plans", plan=row, last=last, form=form, tenants=tenants)
    return render(request, "operate/plan_publish.html", context, status=400 if form.errors else 200)


# -- all tenants moved -------------------------------------------------------------------------------------------------


class MoveForm(OperatorForm):
    """The plan that all tenants of another move to, and the moment."""

    renamed = {"plan": "to"}

    to = NameField(plan_slugs, label="To the newest version of")
    at_once = forms.BooleanField(
        required=False,
        label="At once for everybody",
        help_text="Otherwise those who get less credit a month then change at the end of their month.",
    )
    name = forms.CharField(max_length=80, label="Type the plan’s name to confirm")

    def __init__(self, *args: Any, plan: Plan, **options: Any) -> None:
        super().__init__(*args, **options)
        self.plan = plan

    def clean_name(self) -> str:
        """Refuse any other name."""
        if self.cleaned_data["name"].strip() != self.plan.name:
            raise ValidationError(f"Type {self.plan.name} to confirm.")
        return self.plan.name


@require_http_methods(["GET", "HEAD", "POST"])
@operator_page("billing.change_subscription")
def move(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Have all tenants of a plan moved: asked for here, done some at a time."""
    row = get_object_or_404(Plan, slug=slug)
    form = MoveForm(request.POST or None, plan=row, initial={"to": slug})
    if form.is_valid():
        to = Plan.objects.get(slug=form.cleaned_data["to"])
        try:
            plan_moves.ask(row, to, at_once=form.cleaned_data["at_once"], asked_by=desk.user.email)
        except PlanError as error:
            form.refuse(error)
        else:
            return redirect("operate-plan", slug)
    cards = {one.plan.slug: one for one in plan_cards()}
    context = desk.context(page="plans", plan=row, form=form, tenants=cards[slug].tenants, older=cards[slug].older)
    return render(request, "operate/plan_move.html", context, status=400 if form.errors else 200)
