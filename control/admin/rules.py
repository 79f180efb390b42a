"""Routing rules with their examples and ceilings. Here and not in `routing`, which knows neither plans nor credits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from billing.admin.base import CreditsField, RowsAdmin, RowsInline, tool
from billing.models import PlanVersion
from control.admin.choices import NameField, plans, tasks
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import live_of
from routing.catalogue import ceiling_of
from routing.errors import RoutingError
from routing.models import RouteRule, RouteTarget
from routing.places import told
from routing.services.rules import (
    MOST_CHARACTERS,
    MOST_EXAMPLES,
    MOST_OF_ALL,
    InvalidExamplesError,
    checked_examples,
)

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # can't be subscripted when it runs

_EXAMPLES_HELP = (
    f"Requests of this rule's task as people write them, one a line: at most {MOST_EXAMPLES}, of at most"
    f" {MOST_CHARACTERS} characters, {MOST_OF_ALL} of all rules together. A request for auto that doesn't say its task"
    " and comes near to one is taken to be for the rule's task."
)


class ExamplesField(forms.CharField):
    """Sample texts, one a line, cleaned to a list."""

    widget = forms.Textarea

    def prepare_value(self, value: Any) -> Any:
        """Return a list as lines."""
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> list[str]:
        """Return the lines that aren't empty."""
        text = super().clean(value)
        return [line.strip() for line in text.splitlines() if line.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Whether the list differs."""
        return bool(list(initial or []) != self.clean(data))


class RouteRuleForm(ModelForm):
    """When a rule holds, what its requests are like, and what its models may cost."""

    plan = NameField(plans, any_label="any plan")
    task = NameField(tasks, any_label="any task", help_text="SLUICE_TASKS lists them.")
    structure = forms.ChoiceField(
        choices=[("", "anything"), *RouteRule.Structure.choices],
        required=False,
        help_text="What the request has. With a task, requests that have it and don't say their task are for that.",
    )
    examples = ExamplesField(required=False, help_text=_EXAMPLES_HELP)
    least_similarity = forms.IntegerField(
        min_value=1,
        max_value=100,
        help_text="Percent: what is less like its nearest example is left to the plan's default task.",
    )
    max_price = CreditsField(required=False, help_text="Credits per million output tokens.")
    max_request_price = CreditsField(
        required=False, help_text="Credits for the request, as far as they can be estimated."
    )

    class Meta:
        model = RouteRule
        fields = [
            *("name", "priority", "plan", "task", "structure", "min_prompt_tokens", "max_prompt_tokens", "examples"),
            *("least_similarity", "max_price", "max_request_price", "max_ttft_ms", "ttft_percentile"),
            *("beyond_ceiling", "is_active"),
        ]
        labels = {"max_ttft_ms": "Max time to first token", "ttft_percentile": "Percentile"}
        help_texts = {
            "max_ttft_ms": "Milliseconds, of the deployment's requests of the last five minutes.",
            "beyond_ceiling": "Where no model holds its ceilings. Of those that do, the cheapest is taken.",
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not self.instance.pk or self.instance._state.adding:  # noqa: SLF001 - documented
            self.initial.setdefault("least_similarity", RouteRule._meta.get_field("least_similarity").default)

    def clean(self) -> dict[str, Any]:
        """Check the examples; those of an active rule count towards all rules' together."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("examples"):
            if not data.get("task"):
                self.add_error("task", "A rule with examples is for a task: choose the one that they are for.")
            try:
                data["examples"] = checked_examples(data["examples"], data.get("task") or "", besides=self.instance.pk)
            except InvalidExamplesError as error:
                raise ValidationError({"examples": str(error)}) from error
        return data


class TargetInline(RowsInline):
    """The models that a rule may choose."""

    model = RouteTarget
    extra = 1
    autocomplete_fields = ["model"]


class TryForm(forms.Form):
    """A request to be routed without running it."""

    plan = forms.ChoiceField(choices=lambda: [(slug, slug) for slug in plans()])
    text = forms.CharField(
        max_length=20_000, help_text="What the request asks. It is stored nowhere.", widget=forms.Textarea
    )
    tools = forms.BooleanField(required=False, label="It has tools")
    schema = forms.BooleanField(required=False, label="It has a schema")
    conversation = forms.CharField(
        required=False,
        max_length=120,
        label="Its conversation has the model",
        help_text="Empty: it begins one.",
    )
    models = forms.CharField(
        required=False,
        max_length=2_000,
        label="Its API key is for the models",
        help_text="Names with commas between them; empty: all of the plan's.",
    )

    def clean_models(self) -> list[str]:
        """Return the names."""
        names = (name.strip() for name in self.cleaned_data["models"].split(","))
        return [name for name in names if name]


@admin.register(RouteRule)
class RouteRuleAdmin(RowsAdmin):
    """Rules in the order in which they are tried."""

    list_display = ["name", "priority", "plan", "task", "example_count", "display_ceiling", "is_active"]
    list_filter = ["is_active", "plan", "task"]
    search_fields = ["name", "plan", "task"]
    form = RouteRuleForm
    fieldsets = (
        (None, {"fields": ["name", "priority", "is_active"]}),
        ("Requests", {"fields": ["plan", "task", "structure", "min_prompt_tokens", "max_prompt_tokens"]}),
        ("Examples of the task", {"fields": ["examples", "least_similarity"]}),
        (
            "Ceilings",
            {"fields": ["max_price", "max_request_price", "max_ttft_ms", "ttft_percentile", "beyond_ceiling"]},
        ),
    )
    inlines = [TargetInline]
    show_full_result_count = False
    list_tools = ["try_text"]

    @admin.display(description="Examples")
    def example_count(self, rule: RouteRule) -> int:
        """How many it has."""
        return len(rule.examples)

    @admin.display(description="Ceiling")
    def display_ceiling(self, rule: RouteRule) -> str:
        """Its ceilings of price and time."""
        ceiling = ceiling_of(rule)
        return "–" if ceiling is None else told(ceiling)

    @tool("Try a text", path="try", permission="view")
    def try_text(self, request: HttpRequest) -> HttpResponse:
        """Show which rule a text would take, by which steps, and how near it comes to the rules' examples."""
        form = TryForm(request.POST or None)
        found: dict[str, Any] = {}
        if form.is_valid():
            data = dict(form.cleaned_data)
            versions = PlanVersion.objects.filter(plan__slug=data.pop("plan")).select_related("plan")
            version = versions.order_by("-number").first()
            if version is None:
                form.add_error("plan", "This plan has no published terms.")
            else:
                try:
                    found["decision"] = dry_run(live_of(request), version, Wanted(**data))
                except RoutingError as error:
                    found["refused"] = error.message
        back = reverse("admin:routing_routerule_changelist")
        told = (
            "The text is routed as a request for auto would be now, and not run. Saved rules count, not what stands in "
            "open forms."
        )
        page = {"title": "Try a text", "told": told, "button": "Try", "back": back, "back_title": "Back to the rules"}
        return self.asking(request, form, template="admin/routing/routerule/try.html", **page, **found)
