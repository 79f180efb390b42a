"""Acts on credit that a tenant gets by time: grants to come, recurring ones; and on its invoices."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_http_methods

from billing.models import CreditGrant, Invoice, RecurringGrant, ScheduledGrant
from billing.services import invoices, recurring, wallets
from billing.statements.months import time_zone_of
from control.operate.asks import METHODS, Ask, ReasonForm, answered, bound
from control.operate.base import Desk, operator_page
from control.operate.subject import Section, Subject, open_tenant, page_of
from control.screens.figures import moment
from control.screens.forms import CreditsField, MomentField, OnceForm
from control.screens.grants import cancel, in_credits, invoices_table, often, recurring_table
from control.screens.tables import Button
from tenancy.audit.origin import because

_NEEDS = ("gateway.view_tenant", "billing.add_creditgrant")
_State = RecurringGrant.State


def sections(subject: Subject) -> list[Section]:
    """Return the parts of the wallet's tab: recurring grants, and invoices where there are any."""
    assert subject.balance is not None
    may_give = subject.desk.may("billing.add_creditgrant") and subject.tenant.erased_at is None

    def of_recurring(one: RecurringGrant) -> list[Button]:
        acts = {
            _State.ACTIVE: (("Pause", "paused"), ("End", "ended")),
            _State.PAUSED: (("Resume", "active"), ("End", "ended")),
        }
        return [
            Button(
                name, subject.address("recurring-state", one.pk, state), str(one),
                tone="danger" if state == "ended" else "quiet",
            )
            for name, state in acts.get(_State(one.state), ())
        ]  # fmt: skip

    def of_invoice(one: Invoice) -> list[Button]:
        if one.state != Invoice.State.OPEN:
            return []
        return [
            Button("Paid", subject.address("invoice-pay", one.pk), str(one)),
            Button("Void", subject.address("invoice-void", one.pk), str(one), tone="danger"),
        ]

    wallet = subject.balance.wallet
    add = subject.buttons(("New recurring grant", "recurring", "billing.add_creditgrant"))
    table = recurring_table(wallet, of_recurring if may_give else None)
    found = [Section("Recurring grants", table=table, buttons=add)]
    if (asked := invoices_table(wallet, of_invoice if may_give else None)).rows:
        found.append(Section("Invoices", table=asked))
    return found


@require_http_methods(METHODS)
@operator_page(*_NEEDS)
def scheduled_cancel(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Cancel a grant that hasn't begun."""
    tenant = open_tenant(slug)
    one = get_object_or_404(ScheduledGrant, pk=pk, wallet__tenant=tenant)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            cancel(tenant, one)
        return f"The grant of {in_credits(one.amount)} won’t begin."

    follows = [f"It gives {in_credits(one.amount)} from {moment(one.begins_at)} on."]
    ask = Ask(
        f"Cancel a grant of {tenant.name}", "Cancel the grant", page_of(tenant, "wallet"), tenant.name, follows=follows,
        is_danger=True,
    )  # fmt: skip
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


class RecurringForm(OnceForm):
    """A new recurring grant."""

    amount = CreditsField(label="Credits each time")
    reason = forms.CharField(max_length=200, help_text="Stands in the ledger and in the audit trail.")
    kind = forms.ChoiceField(
        choices=[(CreditGrant.Kind.PROMOTIONAL, "Promotional"), (CreditGrant.Kind.GOODWILL, "Goodwill")]
    )
    window = forms.ChoiceField(choices=[("day", "Day"), ("week", "Week"), ("month", "Month")], label="Each")
    begins_at = MomentField(label="First (UTC)", help_text="Its days, weeks or months count from then. Empty: now.")
    time_zone = forms.CharField(
        max_length=60, help_text="By its calendar and clock, so that a change of clocks moves nothing."
    )
    count = forms.IntegerField(
        required=False, min_value=1, label="How many times", help_text="Empty: until an end, or until you end it."
    )
    until = MomentField(label="Or until (UTC)", help_text="None begins then or later.")
    windows = forms.IntegerField(
        initial=1, min_value=1, max_value=recurring.MOST_WINDOWS, label="Each lasts for",
        help_text="So many days, weeks or months; 1: until the next one comes.",
    )  # fmt: skip
    rollover = CreditsField(
        required=False, label="Rolls over", help_text="At most so much of what is left lasts for one more. Empty: none."
    )
    priority = forms.IntegerField(initial=50, min_value=0, max_value=100, label="Order", help_text="0 is used first.")


@require_http_methods(METHODS)
@operator_page(*_NEEDS)
def recurring_new(request: HttpRequest, desk: Desk, slug: str) -> HttpResponseBase:
    """Give the tenant credit again and again."""
    tenant = open_tenant(slug)

    def act(asked: dict[str, Any]) -> str:
        wallet = wallets.open_wallet(tenant_id=tenant.pk).pk
        made = recurring.make(wallet_id=wallet, actor=str(desk.user), **asked)
        return f"{in_credits(made.amount)} {often(made)}."

    follows = ["Each is a grant of its own, which is there the moment its day, week or month begins."]
    ask = Ask(
        f"New recurring grant of {tenant.name}", "Make it", page_of(tenant, "wallet"), tenant.name, follows=follows
    )
    form = RecurringForm(bound(request), initial={"time_zone": time_zone_of(tenant.pk)})
    return answered(request, desk, ask, form, act)


_VERBS = {
    _State.PAUSED: ("Pause", "Those that would begin while it is paused are left out."),
    _State.ACTIVE: ("Resume", "It goes on with the next day, week or month that begins."),
    _State.ENDED: ("End", "No further one begins. It can’t be resumed."),
}


@require_http_methods(METHODS)
@operator_page(*_NEEDS)
def recurring_state(request: HttpRequest, desk: Desk, slug: str, pk: UUID, state: str) -> HttpResponseBase:
    """Pause, resume or end a recurring grant."""
    tenant = open_tenant(slug)
    one = get_object_or_404(RecurringGrant, pk=pk, wallet__tenant=tenant)
    if state not in _VERBS:
        raise Http404
    verb, follows = _VERBS[_State(state)]

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            changed = recurring.set_state(one.pk, _State(state))
        return f"The recurring grant of {in_credits(one.amount)} is {changed.get_state_display().lower()}."

    told = [f"{in_credits(one.amount)} {often(one)}.", follows, "What it gave stays as long as it would have."]
    ask = Ask(
        f"{verb} a recurring grant of {tenant.name}", verb, page_of(tenant, "wallet"), tenant.name, follows=told,
        is_danger=state == _State.ENDED,
    )  # fmt: skip
    return answered(request, desk, ask, ReasonForm(bound(request)), act)


class PaymentForm(forms.Form):
    """The payment of an invoice."""

    paid_amount = forms.IntegerField(
        min_value=0, label="Money paid", help_text="In the currency’s smallest unit: 4990 for 49.90 EUR."
    )
    currency = forms.CharField(max_length=3, help_text="Its three letters, as EUR.")
    reference = forms.CharField(
        max_length=200, label="Payment’s reference", help_text="As your bank or provider has it; the tenant reads it."
    )

    def clean_currency(self) -> str:
        """Return the letters in capitals."""
        currency: str = self.cleaned_data["currency"]
        return currency.upper()


def _invoice_of(slug: str, pk: UUID) -> Invoice:
    return get_object_or_404(Invoice, pk=pk, wallet__tenant=open_tenant(slug))


@require_http_methods(METHODS)
@operator_page(*_NEEDS)
def invoice_pay(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Note that an invoice was paid."""
    tenant, one = open_tenant(slug), _invoice_of(slug, pk)

    def act(asked: dict[str, Any]) -> str:
        paid = invoices.pay(one.pk, actor=str(desk.user), **asked)
        return f"{paid} is paid, and {in_credits(paid.amount)} are granted."

    follows = [
        f"{in_credits(one.amount)} of paid credit come in: they repay what is overdrawn, and the rest can be spent."
    ]
    ask = Ask(f"{one} of {tenant.name}", "It is paid", page_of(tenant, "wallet"), tenant.name, follows=follows)
    return answered(request, desk, ask, PaymentForm(bound(request)), act)


@require_http_methods(METHODS)
@operator_page(*_NEEDS)
def invoice_void(request: HttpRequest, desk: Desk, slug: str, pk: UUID) -> HttpResponseBase:
    """Ask for an invoice no more."""
    tenant, one = open_tenant(slug), _invoice_of(slug, pk)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            return f"{invoices.void(one.pk, reason=asked['reason'])} is void."

    follows = ["What is still overdrawn then is part of the next month’s invoice: give goodwill credit to forgive it."]
    ask = Ask(
        f"Void {str(one).lower()} of {tenant.name}", "Void", page_of(tenant, "wallet"), tenant.name, follows=follows,
        is_danger=True,
    )  # fmt: skip
    return answered(request, desk, ask, ReasonForm(bound(request)), act)
