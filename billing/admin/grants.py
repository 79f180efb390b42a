"""Grants: "add" grants credit; actions void grants, or pay back what is left of one."""

from __future__ import annotations

import secrets
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from base.units import format_credits
from billing.admin.base import (
    CreditsField,
    ReasonForm,
    SearchById,
    ServiceAdmin,
    ServiceForm,
    credits_column,
    take_over,
    tool,
    wallets_of_tenants_named,
)
from billing.models import CreditGrant
from billing.services import credits


def mint_key() -> str:
    """Return a new idempotency key for a form, so that sending it twice takes effect once."""
    return f"admin:{secrets.token_urlsafe(16)}"


class GrantForm(ServiceForm):
    """The form of a new grant."""

    amount = CreditsField(help_text="Credits.")
    reason = forms.CharField(max_length=200, help_text="Kept in the ledger.")
    key = forms.CharField(max_length=100, widget=forms.HiddenInput, initial=mint_key)

    class Meta:
        model = CreditGrant
        fields = ["wallet", "amount", "kind", "expires_at", "priority", "restriction", "paid_amount", "currency"]

    def clean_kind(self) -> str:
        """Refuse what no operator gives."""
        kind: str = self.cleaned_data["kind"]
        if kind == CreditGrant.Kind.ROLLOVER:
            raise ValidationError("credit rolls over by itself: choose another kind")
        return kind

    def clean_amount(self) -> int:
        """Refuse an amount of zero or less."""
        amount: int = self.cleaned_data["amount"]
        if amount <= 0:
            raise ValidationError("must be above zero")
        return amount

    def clean(self) -> dict[str, Any]:
        """Refuse money without a currency, or below zero, and a currency without money."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        paid, currency = given.get("paid_amount"), given.get("currency", "")
        if (paid is None) == bool(currency):
            self.add_error("currency" if paid is not None else "paid_amount", "an amount and a currency, or neither")
        if paid is not None and paid < 0:
            self.add_error("paid_amount", "must not be below zero")
        return given

    def clean_currency(self) -> str:
        """Return the currency's three letters in capitals."""
        currency: str = self.cleaned_data["currency"].upper()
        if currency and not (currency.isascii() and currency.isalpha() and len(currency) == 3):
            raise ValidationError("three letters, as EUR")
        return currency

    def clean_expires_at(self) -> Any:
        """Refuse an end in the past."""
        moment = self.cleaned_data["expires_at"]
        if moment is not None and moment <= timezone.now():
            raise ValidationError("must be in the future")
        return moment


class RefundForm(ReasonForm):
    """The money paid back for the rest of a grant."""

    money = forms.IntegerField(
        required=False,
        min_value=0,
        help_text="In minor units; empty: the share that the credit taken out has of what was paid, rounded down.",
    )
    reference = forms.CharField(max_length=200, help_text="Of the payment.")
    field_order = ("money", "reference", "reason")


@admin.register(CreditGrant)
class CreditGrantAdmin(SearchById, ServiceAdmin):
    """Grants with what is left of them."""

    add_form = GrantForm
    list_display = ["wallet", "kind", "display_amount", "display_remaining", "priority", "expires_at", "created_at"]
    list_filter = ["kind", ("expires_at", admin.EmptyFieldListFilter)]
    list_select_related = ["wallet__tenant"]
    search_help_text = "A grant's id, where it came from, or a tenant's name."
    autocomplete_fields = ["wallet"]
    ordering = ["-created_at"]
    actions = ["void_grants"]
    row_tools = ["refund"]
    fields = [
        "wallet", "kind", "display_amount", "display_remaining", "priority", "effective_at", "expires_at", "expired_at",
        "voided_at", "source", "restriction", "paid_amount", "currency", "paid_reference", "refunded_amount",
        "refund_reference", "created_at",
    ]  # fmt: skip
    readonly_fields = fields
    display_amount = credits_column("amount", "Amount")
    display_remaining = credits_column("remaining", "Left")

    def get_actions(self, request: HttpRequest) -> Any:
        """Offer voiding to operators who may grant."""
        found = super().get_actions(request)
        return found if self.has_add_permission(request) else {}

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        if identifier is not None:
            return rows.filter(pk=identifier)
        named = [wallet for wallet, _ in wallets_of_tenants_named(text)]
        return rows.filter(Q(wallet__in=named) | Q(source=text))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        given = form.cleaned_data
        made = credits.grant(
            wallet_id=given["wallet"].pk,
            amount=given["amount"],
            kind=CreditGrant.Kind(given["kind"]),
            key=given["key"],
            actor=str(request.user),
            reason=given["reason"],
            expires_at=given["expires_at"],
            priority=given["priority"],
            source="admin",
            paid_amount=given["paid_amount"],
            currency=given["currency"],
            models=filter(None, map(str.strip, given["restriction"].splitlines())),
        )
        take_over(obj, made)

    def has_refund_permission(self, request: HttpRequest, grant: Any = None) -> bool:
        """Whether this operator may pay money back."""
        return request.user.has_perm("billing.add_creditgrant")

    @tool("Refund…", path="refund", permission="refund")
    def refund(self, request: HttpRequest, grant: CreditGrant) -> HttpResponse:
        """Say what follows and ask for the payment's reference; then take out the rest of the grant."""
        page = reverse("admin:billing_creditgrant_change", args=[grant.pk])
        if grant.paid_amount is None:
            messages.error(request, "Nothing was paid for this grant: void it instead.")
            return HttpResponseRedirect(page)

        def act(given: dict[str, Any]) -> str:
            before = grant.refunded_amount or 0
            taken = credits.refund(
                grant_id=grant.pk,
                key=f"refund:{grant.pk}",
                actor=str(request.user),
                reason=given["reason"],
                reference=given["reference"],
                money=given["money"],
            )
            grant.refresh_from_db()
            back = (grant.refunded_amount or 0) - before  # nothing where it was sent twice
            money = f" for {back} {grant.currency}" if back else ""
            return f"{format_credits(taken)} credits were taken out{money} ({given['reference']}): {given['reason']}"

        told = (
            f"Of {format_credits(grant.amount, separator=',')} credits for {grant.paid_amount} {grant.currency} "
            f"(minor units), {format_credits(grant.remaining, separator=',')} are left. What is left and not held is "
            "taken out, and the money that is paid back for it is recorded.\n\n"
            "No payment is made by this: make it where the money came in."
        )
        return self.confirmed(request, grant, RefundForm, act, title=f"Refund {grant}", told=told, button="Refund")

    @admin.action(description="Void: take back what is left and not held")
    def void_grants(self, request: HttpRequest, queryset: QuerySet[CreditGrant]) -> None:
        """Void the selected grants and say how much was taken back."""
        taken = sum(
            credits.void(
                grant_id=grant.pk, key=f"void:{grant.pk}", actor=str(request.user), reason="voided in the admin"
            )
            for grant in queryset
        )
        messages.success(request, f"{format_credits(taken)} credits were taken back.")
