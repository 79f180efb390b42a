"""Plans and their versions: a change of terms is a new version. Here since terms name models and tasks."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Max, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from base.units import format_credits
from billing import promises
from billing.admin.base import (
    CreditsField,
    RowsAdmin,
    ServiceAdmin,
    ServiceForm,
    credits_column,
    named_in,
    take_over,
    tool,
)
from billing.models import Plan, PlanVersion
from billing.services import plans
from control.operate.fields import NameField, NamesField, models_of_plans, tasks


@admin.register(Plan)
class PlanAdmin(RowsAdmin):
    """Name and offer of a plan; its terms are its versions."""

    list_display = ["name", "slug", "is_offered", "display_newest"]
    search_fields = ["name", "slug"]
    ordering = ["slug"]
    row_tools = ["publish_new_version"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        found: QuerySet[Plan] = super().get_queryset(request)
        return found.annotate(newest=Max("versions__number"))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["slug"] if obj is not None else []

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="Newest version", ordering="newest")
    def display_newest(self, plan: Any) -> str:
        return f"v{plan.newest}" if plan.newest else "none yet"

    def has_publish_permission(self, request: HttpRequest, plan: Any = None) -> bool:
        """Whether this operator may publish terms."""
        return request.user.has_perm("billing.add_planversion")

    @tool("Publish new version", path="publish", permission="publish")
    def publish_new_version(self, request: HttpRequest, plan: Plan) -> HttpResponse:
        """Open the form of a new version, filled with the terms of the last one."""
        return HttpResponseRedirect(f"{reverse('admin:billing_planversion_add')}?plan={plan.pk}")


class PublishVersionForm(ServiceForm):
    """All terms of a new version; amounts in credits."""

    credit_limit = CreditsField(help_text="Credits per period.")
    credit_burst = CreditsField(help_text="Credits at once.")
    monthly_credits = CreditsField(help_text="Credits granted at the start of each month.")
    rollover = CreditsField(required=False, help_text="Credits of a month that last for one more; empty: none.")
    overdraft_limit = CreditsField(help_text="Credits below zero, unless overage is block.")
    promise_cap = CreditsField(required=False, help_text="Credits that misses give back in a month; empty: any.")
    allowed_models = NamesField(
        models_of_plans, required=False, help_text="None chosen allows all, also those to come."
    )
    default_task = NameField(tasks, help_text="What a request to “auto” is for that doesn't say.")

    class Meta:
        model = PlanVersion
        fields = ["plan", *plans.TERMS]


@admin.register(PlanVersion)
class PlanVersionAdmin(ServiceAdmin):
    """Versions of plans; "add" publishes a new one."""

    add_form = PublishVersionForm
    list_display = [
        "__str__",
        "display_requests",
        "display_rate",
        "display_monthly",
        "concurrency",
        "weight",
        "priority",
    ]
    list_filter = ["plan"]
    list_select_related = ["plan"]
    ordering = ["plan__slug", "-number"]
    fields = [
        "plan", "number", "display_requests", "display_rate", "display_tokens", "display_monthly", "concurrency",
        "weight", "priority", "slice_tokens", "resume_s", "multiplier_bp", "flex_bp", "priority_bp", "display_promise",
        "overage", "display_overdraft", "display_rollover", "allowed_models", "adapters", "default_task", "created_at",
    ]  # fmt: skip
    readonly_fields = fields
    display_monthly = credits_column("monthly_credits", "Credits a month")
    display_overdraft = credits_column("overdraft_limit", "Overdraft")
    display_rollover = credits_column("rollover", "Rolls over")

    @admin.display(description="Requests")
    def display_requests(self, version: PlanVersion) -> str:
        return f"{version.request_limit:,} in {version.request_period_s:,} s, {version.request_burst:,} at once"

    @admin.display(description="Credits")
    def display_rate(self, version: PlanVersion) -> str:
        limit, burst = (
            format_credits(amount, separator=",") for amount in (version.credit_limit, version.credit_burst)
        )
        return f"{limit} in {version.credit_period_s:,} s, {burst} at once"

    @admin.display(description="Promise")
    def display_promise(self, version: PlanVersion) -> str:
        return promises.terms_in_words(version) or "none"

    @admin.display(description="Tokens")
    def display_tokens(self, version: PlanVersion) -> str:
        if version.token_limit is None:
            return "any"
        burst = version.token_burst or version.token_limit
        return f"{version.token_limit:,} in {version.token_period_s:,} s, {burst:,} at once"

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        last = PlanVersion.objects.filter(plan=named_in(initial, "plan")).order_by("-number").first()
        return {**({name: getattr(last, name) for name in plans.TERMS} if last else {}), **initial}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        terms = {name: form.cleaned_data[name] for name in plans.TERMS}
        take_over(obj, plans.publish_version(form.cleaned_data["plan"], **terms))
