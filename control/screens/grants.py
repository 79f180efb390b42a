"""Credit that comes by time, and invoices, as both sides show them; and what operators do with them, with its trail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Case, When

from base.units import format_credits, format_money
from billing.models import CreditGrant, Invoice, RecurringGrant, ScheduledGrant
from billing.periods import zone
from billing.services import credits
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.audit.trail import record
from tenancy.models import Tenant

WORDS = {
    "plan": "Monthly credit",
    "promotional": "Promotional",
    "goodwill": "Goodwill",
    "paid": "Paid",
    "rollover": "Rolled over",
}
"""The kinds of grants."""

_TONES = {"active": "good", "paused": "warn", "open": "warn", "paid": "good"}
_EACH = {"day": "each day", "week": "each week", "month": "each month"}
_SHOWN = 50
_TERMS = (
    *("kind", "amount", "begins_at", "expires_at", "priority", "paid_amount", "currency", "paid_reference"),
    *("reason", "restriction"),
)


def give_later(tenant: Tenant, **terms: Any) -> UUID:
    """Have the tenant get a grant later (`billing.services.credits.grant_later`), and note it in the trail."""
    last = ScheduledGrant.objects.order_by("-pk").values_list("pk", flat=True).first()
    made = credits.grant_later(**terms)
    one = ScheduledGrant.objects.filter(pk=made).first()
    if one is not None and (last is None or made > last):  # else it was said before
        record("credit.scheduled", one, tenant=tenant.pk, after={name: getattr(one, name) for name in _TERMS})
    return made


def cancel(tenant: Tenant, one: ScheduledGrant) -> None:
    """Let a grant that hasn't begun never begin, and note it in the trail."""
    credits.cancel(one.pk)
    record("credit.cancelled", one, tenant=tenant.pk, before={name: getattr(one, name) for name in _TERMS})


def recurring_table(wallet: UUID, actions: Callable[[RecurringGrant], Sequence[Button]] | None = None) -> Table:
    """Return the wallet's recurring grants, those that go on first."""
    columns = [
        Column("Credit", "name"),
        Column("State", "state"),
        Column("Amount", "balance"),
        Column("How often", "wraps"),
        Column("Rolls over", "balance"),
        Column("Next", "time"),
    ] + [Column("Actions", "buttons", is_hidden=True)] * (actions is not None)
    is_over = Case(When(state=RecurringGrant.State.ENDED, then=1), default=0)
    rows = []
    for one in RecurringGrant.objects.filter(wallet=wallet).order_by(is_over, "-created_at")[:_SHOWN]:
        is_active = one.state == RecurringGrant.State.ACTIVE
        values: list[Any] = [
            Cell(WORDS[one.kind], detail=one.reason),
            State(one.get_state_display(), _TONES.get(one.state, "")),
            one.amount,
            often(one),
            one.rollover,
            one.next_at if is_active else None,
        ]
        rows.append(Row([*values, *([actions(one)] if actions else [])], is_over=not is_active))
    return Table("Recurring grants", columns, rows, "There is no recurring grant.", id="recurring")


def often(one: RecurringGrant) -> str:
    """Return how often a grant recurs, from when on and until when, in words."""
    said = f"{_EACH[one.window]} from {_local(one.anchor, one)} on"
    said += f", until {_local(one.until, one)}" if one.until else ""
    return f"{said}; each lasts for {one.windows} {one.window}s" if one.windows > 1 else said


def _local(moment: datetime, one: RecurringGrant) -> str:
    return f"{moment.astimezone(zone(one.time_zone)):%Y-%m-%d %H:%M} ({one.time_zone})"


def invoices_table(wallet: UUID, actions: Callable[[Invoice], Sequence[Button]] | None = None) -> Table:
    """Return the wallet's newest invoices."""
    columns = [
        Column("Invoice", "name"),
        Column("State", "state"),
        Column("Credits", "balance"),
        Column("Up to", "time"),
        Column("Payment", "wraps"),
    ] + [Column("Actions", "buttons", is_hidden=True)] * (actions is not None)
    rows = []
    for one in Invoice.objects.filter(wallet=wallet).select_related("grant").order_by("-number")[:_SHOWN]:
        is_open = one.state == Invoice.State.OPEN
        values = [
            f"No. {one.number}",
            State(one.get_state_display(), _TONES.get(one.state, "")),
            one.amount,
            one.ends_at,
            _payment(one.grant) or one.reason,
        ]
        rows.append(Row([*values, *([actions(one)] if actions else [])], is_over=not is_open))
    return Table("Invoices", columns, rows, "None was made.", id="invoices")


def _payment(grant: CreditGrant | None) -> str:
    if grant is None or grant.paid_amount is None:
        return ""
    return f"{format_money(grant.paid_amount, grant.currency)} ({grant.paid_reference})"


def in_credits(micro: int) -> str:
    """Return an amount with its unit."""
    return f"{format_credits(micro, separator=',')} credits"
