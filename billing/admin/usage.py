"""Usage records: what each request used and was charged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from base.ids import day_of
from base.units import format_credits
from billing.admin.base import ReadOnlyAdmin, SearchById, credits_column, table, wallets_of_tenants_named
from billing.models import UsageRecord, Wallet
from billing.selectors.prices import bill_of
from billing.selectors.usage import models_since


class ModelFilter(admin.SimpleListFilter):
    """Models used in the last 90 days: there are too many records to search."""

    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        return [(name, name) for name in models_since(timezone.now().date() - timedelta(days=90))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(model=self.value()) if self.value() else queryset


@admin.register(UsageRecord)
class UsageRecordAdmin(SearchById, ReadOnlyAdmin):
    """Requests, newest first."""

    list_display = [
        "settled_at", "display_tenant", "model", "display_tokens", "display_charge", "finish", "display_marks",
        "request",
    ]  # fmt: skip
    list_filter = [ModelFilter, "exact", "waived", "day"]
    search_help_text = "A request's id (also chatcmpl-… or resp_…), a key's id, or a tenant's id or name."
    ordering = ["-day", "-request"]
    fields = [
        "request", "display_tenant", "model", "endpoint", "task", "finish", "display_bill", "display_charge",
        "display_refunded", "display_held", "exact", "waived", "revision", "rerating", "card_version", "multiplier_bp",
        "formula", "project", "api_key", "user", "deployment", "display_route", "ttft_ms", "duration_ms", "reserved_at",
        "settled_at",
    ]  # fmt: skip
    readonly_fields = fields
    display_charge = credits_column("charge", "Credits")
    display_refunded = credits_column("refunded", "Refunded")
    display_held = credits_column("held", "Held when it ended")

    def get_queryset(self, request: HttpRequest) -> QuerySet[UsageRecord]:
        name = Wallet.objects.filter(pk=OuterRef("wallet")).values("tenant__name")
        found: QuerySet[UsageRecord] = super().get_queryset(request)
        return found.annotate(tenant_name=Subquery(name))

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        if identifier is None:
            return rows.filter(tenant__in=[tenant for _, tenant in wallets_of_tenants_named(text)])
        request = Q(day=day_of(identifier), request=identifier)
        return rows.filter(request | Q(tenant=identifier) | Q(api_key=identifier))

    @admin.display(description="Tokens")
    def display_tokens(self, record: UsageRecord) -> str:
        """Input, what of it was cached, and output, its reasoning included."""
        cached = f" + {record.cache_read_tokens:,} cached" if record.cache_read_tokens else ""
        return f"{record.input_tokens:,}{cached} in, {record.completion_tokens:,} out"

    @admin.display(description="Notes")
    def display_marks(self, record: UsageRecord) -> str:
        """Its unusual marks: estimate, waived, corrected."""
        marks = {
            "estimated": not record.exact,
            "waived": record.waived,
            f"revision {record.revision}": record.revision > 0,
        }
        return ", ".join(mark for mark, is_so in marks.items() if is_so) or "–"

    @admin.display(description="What it cost")
    def display_bill(self, record: UsageRecord) -> SafeString:
        rows = (
            (
                line.usage_class,
                f"{line.tokens:,}",
                format_credits(line.rate, separator=","),
                format_credits(line.amount, separator=","),
            )
            for line in bill_of(record)
        )
        return table(("Class", "Tokens", "Credits per million", "Credits"), rows, empty="Nothing was charged.")

    @admin.display(description="Why this model")
    def display_route(self, record: UsageRecord) -> SafeString:
        route = record.route
        passed = (
            (
                one["model"],
                one["deployment"],
                one.get("node") or "",
                _or_blank(one.get("load")),
                _or_blank(one.get("matched")),
                one["rejected"] or "chosen",
            )
            for one in route.get("candidates", [])
        )
        headings = ("Model", "Deployment", "Node", "Tokens to compute", "Tokens cached", "")
        steps = ((one["step"], one["outcome"], one["value"], _similarities(one)) for one in route.get("signals", []))
        found = table(("Step", "Outcome", "What it saw", "Similarity to each rule"), steps, empty="")
        return format_html("{}{}{}", route.get("reason", ""), found, table(headings, passed, empty=""))

    @admin.display(description="Tenant")
    def display_tenant(self, record: Any) -> str:
        return record.tenant_name or str(record.tenant)


def _similarities(signal: dict[str, Any]) -> str:
    return ", ".join(f"{one['rule']} {one['similarity'] * 100:.1f} %" for one in signal.get("similarities", []))


def _or_blank(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
