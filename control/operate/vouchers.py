"""Vouchers: batches of codes with the same terms, made, shown once, followed and withdrawn."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods, require_safe

from base import clock
from base.units import format_credits, format_money
from billing.models import Voucher, VoucherBatch, VoucherUse
from billing.services import vouchers
from control.operate.asks import Ask, answered, bound
from control.operate.base import Desk, address_of, operator_page
from control.screens.figures import grouped, moment
from control.screens.forms import CreditsField, MomentField, OnceForm
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.audit.origin import because

PAGE = 50
_METHODS = ["GET", "HEAD", "POST"]
_VIEW, _MAKE = "billing.view_voucherbatch", "billing.add_voucherbatch"


class VoucherForm(OnceForm):
    """The terms of new vouchers."""

    count = forms.IntegerField(initial=1, min_value=1, max_value=vouchers.MOST_CODES, label="Codes")
    amount = CreditsField(label="Credits of each redemption")
    note = forms.CharField(max_length=200, help_text="What they are for; only operators see it.")
    uses = forms.IntegerField(
        initial=1, min_value=1, max_value=1_000_000, label="Tenants for each code", help_text="Each redeems it once."
    )
    valid_until = MomentField(label="Redeemed until (UTC)", help_text="Empty: for ever.")
    credit_days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=36_500,
        label="Life of the credit",
        help_text="Days from the redemption on. Empty: no end.",
    )
    paid_amount = forms.IntegerField(
        required=False,
        min_value=0,
        label="Money paid for each redemption",
        help_text="In the currency’s smallest unit: 4990 for 49.90 EUR. Empty: promotional.",
    )
    currency = forms.CharField(required=False, max_length=3, help_text="Its three letters, as EUR.")

    def clean_currency(self) -> str:
        """Return the letters in capitals."""
        currency: str = self.cleaned_data["currency"]
        return currency.upper()


@sensitive_post_parameters("code")
@require_http_methods(_METHODS)
@operator_page(_VIEW)
def listing(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show the batches, newest first, or lead to the one of a code that is looked for: a live code is in no address."""
    sought, found = request.POST.get("code", "").strip(), None
    if sought and (voucher := vouchers.find(sought)) is not None:
        found = voucher
    before = request.GET.get("before", "")
    batches = VoucherBatch.objects.annotate(
        codes=Count("vouchers"),
        used=Sum("vouchers__used"),
        withdrawn=Count("vouchers", filter=Q(vouchers__withdrawn_at__isnull=False)),
    ).order_by("-id")
    if (last := _uuid(before)) is not None:
        batches = batches.filter(pk__lt=last)
    shown = list(batches[: PAGE + 1])
    columns = [
        *(Column("For", "name"), Column("State", "state"), Column("Credits", "balance")),
        *(Column("Used", "number"), Column("Until", "time"), Column("Made", "time")),
    ]
    now = clock.now()
    rows = []
    for one in shown[:PAGE]:
        is_ended = one.valid_until is not None and one.valid_until <= now
        is_over = is_ended or one.withdrawn == one.codes or one.used >= one.codes * one.uses
        word = "Withdrawn" if one.withdrawn == one.codes else "Ended" if is_ended else "Used up"
        codes = f"{grouped(one.codes)} code{'s' * (one.codes != 1)}, {_paid(one)}"
        name = Cell(one.note, reverse("operate-voucher-batch", args=[one.pk]), codes)
        used = f"{grouped(one.used)} of {grouped(one.codes * one.uses)}"
        state = State(word) if is_over else State("Open", "good")
        until = moment(one.valid_until, SafeString("any time"))
        values = [name, state, one.amount, used, until, Cell(one.created_at, detail=one.made_by)]
        rows.append(Row(values, is_over=is_over))
    older = f"?before={shown[PAGE - 1].pk}" if len(shown) > PAGE else ""
    table = Table("Vouchers", columns, rows, "No voucher was made yet.", "?" if before else "", older, id="vouchers")
    context = desk.context(page="money", table=table, may_make=desk.may(_MAKE), sought=sought, found=found)
    return render(request, "operate/vouchers.html", context)


def _paid(batch: VoucherBatch) -> str:
    return "promotional" if batch.paid_amount is None else format_money(batch.paid_amount, batch.currency)


@sensitive_variables("codes")
@require_http_methods(_METHODS)
@operator_page(_VIEW, _MAKE)
def new(request: HttpRequest, desk: Desk) -> HttpResponseBase:
    """Make vouchers, and answer with the page that shows their codes, once."""

    def act(asked: dict[str, Any]) -> HttpResponse:
        batch, codes = vouchers.make(made_by=str(desk.user), **asked)
        context = desk.context(page="money", batch=batch, codes=codes, lines="\n".join(codes))
        return render(request, "operate/vouchers_made.html", context)

    follows = ["The codes are shown once, on the next page: only their digests are stored."]
    ask = Ask("New vouchers", "Make the vouchers", reverse("operate-vouchers"), "Vouchers", "money", follows)
    return answered(request, desk, ask, VoucherForm(bound(request)), act)


@require_safe
@operator_page(_VIEW)
def batch(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show a batch's terms, its codes by their ends, and who redeemed them."""
    one = get_object_or_404(VoucherBatch, pk=pk)
    may_end, may_name = desk.may("billing.change_voucher"), desk.may("gateway.view_tenant")
    end = reverse("operate-vouchers-withdraw", args=[one.pk])
    columns = [Column("Code", "name"), Column("State", "state"), Column("Used", "number")]
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_end
    rows, last = [], _uuid(request.GET.get("after", ""))
    mine = Voucher.objects.filter(batch=one).order_by("pk")
    shown = list((mine.filter(pk__gt=last) if last else mine)[: PAGE + 1])
    for code in shown[:PAGE]:
        is_open = code.withdrawn_at is None and code.used < one.uses
        word = "Withdrawn" if code.withdrawn_at else "Used up"
        values: list[Any] = [f"…{code.last_four}", State("Open", "good") if is_open else State(word)]
        values.append(f"{grouped(code.used)} of {grouped(one.uses)}")
        if may_end:
            act = [Button("Withdraw", f"{end}?code={code.pk}", f"…{code.last_four}", tone="danger")]
            values.append(act if code.withdrawn_at is None else [])
        rows.append(Row(values, is_over=not is_open))
    older = f"?after={shown[PAGE - 1].pk}" if len(shown) > PAGE else ""
    words = ("First", "More")
    codes = Table("Codes", columns, rows, "None.", "?" if last else "", older, words=words, id="codes")
    uses = VoucherUse.objects.filter(voucher__batch=one).select_related("voucher", "tenant").order_by("-id")[:PAGE]
    named = [Row([_tenant(use, may_name), f"…{use.voucher.last_four}", use.created_at]) for use in uses]
    columns = [Column("Tenant", "name"), Column("Code"), Column("When", "time")]
    redeemed = Table(f"The last {PAGE} redemptions", columns, named, "Nobody has redeemed one.", id="redemptions")
    facts = [
        ("Credits", format_credits(one.amount, separator=",")),
        ("Paid", _paid(one)),
        ("Tenants for each code", grouped(one.uses)),
        ("Redeemed until", moment(one.valid_until, "any time")),
        ("Life of the credit", f"{one.credit_days:,} days" if one.credit_days else "no end"),
        ("Made", moment(one.created_at)),
        ("By", one.made_by or "a command"),
    ]
    is_open = Voucher.objects.filter(batch=one, withdrawn_at=None).exists()
    context = desk.context(
        page="money", batch=one, facts=facts, codes=codes, redeemed=redeemed, end=end if may_end and is_open else ""
    )
    return render(request, "operate/voucher_batch.html", context)


def _tenant(use: VoucherUse, may_name: bool) -> Cell:
    if not may_name:
        return Cell(f"…{str(use.tenant_id)[-8:]}")
    return Cell(use.tenant.name, address_of("operate-tenant-wallet", use.tenant.slug))


class WithdrawForm(forms.Form):
    """Why codes are withdrawn."""

    reason = forms.CharField(max_length=200, help_text="Stands in the audit trail.")


@require_http_methods(_METHODS)
@operator_page(_VIEW, "billing.change_voucher")
def withdraw(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Let the batch's codes, or the one that `code` names, be redeemed no more."""
    one = get_object_or_404(VoucherBatch, pk=pk)
    found = Voucher.objects.filter(batch=one, withdrawn_at=None)
    if (code := _uuid(request.GET.get("code", ""))) is not None:
        found = found.filter(pk=code)
    chosen = list(found)

    def act(asked: dict[str, Any]) -> str:
        if not chosen:
            raise ValidationError("They are withdrawn already.")
        with because(asked["reason"]):
            done = sum(map(vouchers.withdraw, chosen))
        return f"{grouped(done)} code{'s are' if done != 1 else ' is'} withdrawn."

    what = f"…{chosen[0].last_four}" if code is not None and chosen else f"{grouped(len(chosen))} codes"
    follows = ["They can be redeemed no more. Credit that was redeemed stays: void its grants to take it back."]
    back = reverse("operate-voucher-batch", args=[one.pk])
    ask = Ask(f"Withdraw {what}", "Withdraw", back, one.note, "money", follows, is_danger=True)
    return answered(request, desk, ask, WithdrawForm(bound(request)), act)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
