"""Wallets, the ledger and open holds: all read-only, except that "add" in the ledger adjusts a wallet."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString

from base.units import format_credits
from billing.admin.base import (
    CreditsField,
    ReadOnlyAdmin,
    ReasonForm,
    RowSelect,
    SearchById,
    ServiceAdmin,
    ServiceForm,
    credits_column,
    table,
    take_over,
    tool,
    wallets_of_tenants_named,
)
from billing.admin.grants import mint_key
from billing.models import CreditGrant, Hold, LedgerAccount, LedgerTransfer, Wallet
from billing.selectors.ledger import ledger_of
from billing.services import credits, wallets

LEDGER_LINES = 50


@admin.register(Wallet)
class WalletAdmin(ReadOnlyAdmin):
    """A tenant's credit, with the newest lines of its ledger."""

    list_display = ["tenant", "name", "display_posted", "display_held", "state", "next_grant_change_at"]
    list_filter = ["state"]
    search_fields = ["tenant__name", "tenant__slug"]
    ordering = ["tenant__name", "name"]
    fields = [
        "tenant", "name", "state", "display_posted", "display_held", "display_overdraft", "next_grant_change_at",
        "created_at", "display_ledger",
    ]  # fmt: skip
    readonly_fields = fields
    row_tools = ["grant_credit", "adjust_credit", "freeze"]
    display_posted = credits_column("posted", "Posted")
    display_held = credits_column("held", "Held")
    display_overdraft = credits_column("overdraft_limit", "Overdraft limit")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Wallet]:
        """Return the wallets with their tenants, whose names stand for them wherever one is chosen."""
        rows: QuerySet[Wallet] = super().get_queryset(request)
        return rows.select_related("tenant")

    @admin.display(description=f"Ledger, the newest {LEDGER_LINES} lines")
    def display_ledger(self, wallet: Wallet) -> SafeString:
        lines = ledger_of(wallet.pk, limit=LEDGER_LINES).lines
        rows = (
            (
                f"{line.transfer.booked_at:%Y-%m-%d %H:%M:%S} UTC",
                line.transfer.get_code_display(),
                format_credits(line.amount, separator=","),
                format_credits(line.balance, separator=","),
                line.transfer.reason or line.transfer.request or "",
            )
            for line in lines
        )
        return table(("Booked", "What", "Credits", "Balance", "Reason or request"), rows, empty="Nothing yet.")

    def has_grant_permission(self, request: HttpRequest, wallet: Any = None) -> bool:
        """Whether this operator may give credit."""
        return request.user.has_perm("billing.add_creditgrant")

    @tool("Grant credit", path="grant", permission="grant")
    def grant_credit(self, request: HttpRequest, wallet: Wallet) -> HttpResponse:
        """Open the form of a new grant to this wallet."""
        return HttpResponseRedirect(f"{reverse('admin:billing_creditgrant_add')}?wallet={wallet.pk}")

    def has_adjust_permission(self, request: HttpRequest, wallet: Any = None) -> bool:
        """Whether this operator may correct a wallet."""
        return request.user.has_perm("billing.add_ledgertransfer")

    @tool("Adjust", path="adjust", permission="adjust")
    def adjust_credit(self, request: HttpRequest, wallet: Wallet) -> HttpResponse:
        """Open the form of an adjustment of this wallet."""
        return HttpResponseRedirect(f"{reverse('admin:billing_ledgertransfer_add')}?wallet={wallet.pk}")

    def has_freeze_permission(self, request: HttpRequest, wallet: Any = None) -> bool:
        """Whether this operator may freeze wallets."""
        return request.user.has_perm("billing.change_wallet")

    @tool("Freeze or unfreeze…", path="freeze", permission="freeze")
    def freeze(self, request: HttpRequest, wallet: Wallet) -> HttpResponse:
        """Say what follows and ask for a reason; then freeze the wallet, or open a frozen one."""
        is_frozen = wallet.state == Wallet.State.FROZEN
        verb, state = ("Unfreeze", Wallet.State.OPEN) if is_frozen else ("Freeze", Wallet.State.FROZEN)

        def act(given: dict[str, Any]) -> str:
            wallets.set_state(wallet.pk, state)
            return f"The wallet is {state}: {given['reason']}"

        follows = "New requests hold credit again." if is_frozen else (
            "New requests are refused (403 wallet_frozen), and answers that run end when what they hold is used up. "
            "What they used is charged. Grants can still be made."
        )  # fmt: skip
        return self.confirmed(request, wallet, ReasonForm, act, title=f"{verb} {wallet}", told=follows, button=verb)


class AdjustForm(ServiceForm):
    """The form of an adjustment of a wallet, up or down."""

    wallet = forms.ModelChoiceField(
        Wallet.objects.select_related("tenant"), widget=RowSelect(CreditGrant.wallet.field, admin.site)
    )
    correction = CreditsField(is_signed=True, help_text="Credits; below zero takes away what isn't held.")
    reason = forms.CharField(max_length=200, help_text="Kept in the ledger.")
    key = forms.CharField(max_length=100, widget=forms.HiddenInput, initial=mint_key)

    class Meta:
        model = LedgerTransfer
        fields: list[str] = []


@admin.register(LedgerTransfer)
class LedgerTransferAdmin(SearchById, ServiceAdmin):
    """Every transfer of credit; "add" makes an adjustment."""

    add_form = AdjustForm
    list_display = ["booked_at", "display_debit", "display_credit", "display_amount", "code", "request", "reason"]
    list_filter = ["code"]
    list_select_related = ["debit__wallet__tenant", "credit__wallet__tenant"]
    search_help_text = "A request's id, a transfer's key, or a tenant's name."
    ordering = ["-id"]
    fields = [
        "booked_at", "effective_at", "display_debit", "display_credit", "display_amount", "code", "request", "order",
        "grant", "key", "actor", "reason",
    ]  # fmt: skip
    readonly_fields = fields
    display_amount = credits_column("amount", "Credits")

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        if identifier is not None:
            return rows.filter(Q(request=identifier) | Q(key=text))
        named = [wallet for wallet, _ in wallets_of_tenants_named(text)]
        accounts = list(LedgerAccount.objects.filter(wallet__in=named).values_list("pk", flat=True))
        return rows.filter(Q(key=text) | Q(debit__in=accounts) | Q(credit__in=accounts))

    @admin.display(description="From")
    def display_debit(self, transfer: LedgerTransfer) -> str:
        return str(transfer.debit)

    @admin.display(description="To")
    def display_credit(self, transfer: LedgerTransfer) -> str:
        return str(transfer.credit)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        given = form.cleaned_data
        credits.adjust(
            wallet_id=given["wallet"].pk,
            amount=given["correction"],
            key=given["key"],
            actor=str(request.user),
            reason=given["reason"],
        )
        take_over(obj, LedgerTransfer.objects.get(key=given["key"]))


@admin.register(Hold)
class HoldAdmin(SearchById, ReadOnlyAdmin):
    """Credit held for running requests."""

    list_display = ["id", "wallet", "model", "display_amount", "state", "reserved_at", "lease_until"]
    list_filter = ["state"]
    list_select_related = ["wallet__tenant"]
    search_help_text = "A request's id, or a tenant's name."
    ordering = ["-reserved_at"]
    display_amount = credits_column("amount", "Held")

    def rows_named(self, rows: QuerySet[Any], text: str, identifier: UUID | None) -> QuerySet[Any]:
        if identifier is not None:
            return rows.filter(pk=identifier)
        return rows.filter(wallet__in=[wallet for wallet, _ in wallets_of_tenants_named(text)])
