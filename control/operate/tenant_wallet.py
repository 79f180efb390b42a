"""A tenant's credit and limits: grants, the ledger with its running balance, the terms of its plan, what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core import signing
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from base.units import format_credits, format_money
from billing import promises
from billing.codes import Code
from billing.models import CreditGrant, PlanVersion, Purchase, ScheduledGrant
from billing.selectors.ledger import LedgerCursor, LedgerLine, ledger_of
from billing.services.budgets import Standing, limited_keys
from billing.services.credits import LATER
from control.operate import tenant_grants
from control.operate.base import Desk, operator_page
from control.operate.subject import PAGE, SETTINGS, Section, Subject
from control.screens import statements
from control.screens.budgets import budgets_table
from control.screens.figures import grouped, models_alone, moment, short_id
from control.screens.key_forms import limits_in_words
from control.screens.ledger import WORDS, reason_of
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import APIKey, Tenant
from tenancy.services import tenants
from tenancy.services.restrictions import LIMITS, with_spending

_SALT = "control.operate.ledger"


@require_safe
@operator_page("gateway.view_tenant", "billing.view_wallet")
def wallet(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show grants with what is left of them, and the ledger with its running balance."""
    subject = Subject.of(desk, slug)
    if subject.balance is None:
        return subject.page(request, "operate-tenant-wallet", [Section("Wallet", "It has no wallet yet.")])
    freeze = "Unfreeze" if subject.balance.is_frozen else "Freeze"
    acts = subject.buttons(
        ("Grant credit", "grant", "billing.add_creditgrant"),
        ("Adjust", "adjust", "billing.add_ledgertransfer"),
        (freeze, "freeze", "billing.change_wallet"),
    )
    sections = []
    before = _cursor(request)
    if desk.may("billing.view_creditgrant") and before is None:
        sections += [Section("Grants", table=_grants(subject, subject.balance.wallet), buttons=acts)]
        sections += tenant_grants.sections(subject)
    if before is None:
        sections += [_budgets(subject)]
    if desk.may("billing.view_purchase") and before is None and (bought := _purchases(subject.tenant)).rows:
        sections += [Section("Purchases", table=bought)]
    if desk.may("billing.view_ledgertransfer"):
        if before is None and desk.may("billing.view_usagerecord"):
            listed = statements.list_of(subject.tenant, *_statement_addresses(subject))
            sections += [Section("Statements", table=listed)]
        sections += [Section("Ledger", table=_ledger(subject.balance.wallet, before))]
    return subject.page(request, "operate-tenant-wallet", sections)


def _statement_addresses(subject: Subject) -> tuple[Callable[[str], str], Callable[[str, str], str]]:
    """Return the address of a month's page, and that of one of its files."""
    return partial(subject.address, "statement"), partial(subject.address, "statement-file")


@require_safe
@operator_page("gateway.view_tenant", "billing.view_ledgertransfer", "billing.view_usagerecord")
def statement(request: HttpRequest, desk: Desk, slug: str, month: str) -> HttpResponse:
    """Show a month's statement, a draft while it runs."""
    subject = Subject.of(desk, slug)
    found = statements.month_named(subject.tenant, month)
    files = statements.files_of(_statement_addresses(subject)[1], found)
    told = {"statement": statements.shown(subject.tenant, found), "files": files}
    return render(request, "operate/statement.html", desk.context(page="tenants", **told))


@require_safe
@operator_page("gateway.view_tenant", "billing.view_ledgertransfer", "billing.view_usagerecord")
def statement_file(request: HttpRequest, desk: Desk, slug: str, month: str, form: str) -> StreamingHttpResponse:
    """Send a month's statement in one of its forms, made while it is sent."""
    tenant = Subject.of(desk, slug).tenant
    return statements.download(desk.user.pk, tenant, statements.month_named(tenant, month), form)


def _budgets(subject: Subject) -> Section:
    """Return the tenant's budgets, those that it set itself among them."""
    add = subject.buttons(("New budget", "budget", "billing.change_wallet"))
    if subject.tenant.erased_at is not None or not subject.desk.may("billing.change_wallet"):
        return Section("Budgets", table=budgets_table(subject.tenant, None))

    def actions(one: Standing) -> list[Button]:
        return [
            Button("Change", subject.address("budget-change", one.budget.pk), str(one.budget)),
            Button("Remove", subject.address("budget-remove", one.budget.pk), str(one.budget), tone="danger"),
        ]

    return Section("Budgets", table=budgets_table(subject.tenant, actions), buttons=add)


def _grants(subject: Subject, wallet_id: UUID) -> Table:
    """Return the grants: those to come, those with something left in the order in which they are burnt, then the
    newest that are over.
    """
    may_end = subject.desk.may("billing.add_creditgrant")
    columns = [
        Column("Grant", "name"),
        Column("State", "state"),
        Column("Given", "balance"),
        Column("Left", "balance"),
        Column("Expires", "time"),
        Column("From", "time"),
    ] + [Column("Actions", "buttons", is_hidden=True)] * may_end
    rows = []
    for coming in ScheduledGrant.objects.filter(wallet=wallet_id).order_by("begins_at")[:5]:
        name = Cell(coming.get_kind_display(), detail=_joined(models_alone(coming.restriction), coming.reason))
        ends = coming.expires_at or SafeString("never")
        values = [name, State("To come", "warn"), coming.amount, None, ends, coming.begins_at]
        acts = [Button("Cancel", subject.address("scheduled-cancel", coming.pk), "the grant to come", tone="danger")]
        rows.append(Row([*values, *[acts if coming.source.startswith(LATER) else []] * may_end]))
    mine = CreditGrant.objects.filter(wallet=wallet_id)
    left = list(mine.filter(remaining__gt=0).order_by("priority", "expires_at", "created_at")[:PAGE])
    over = list(mine.filter(remaining=0).order_by("-created_at")[:10])
    for one in [*left, *over]:
        values = [
            Cell(one.get_kind_display(), detail=_joined(models_alone(one.restriction), _paid(one) or _source(one))),
            _grant_state(one),
            one.amount,
            one.remaining,
            one.expires_at or SafeString("never"),
            one.effective_at,
        ]
        if may_end:
            acts = [Button("Void", subject.address("void", one.pk), f"{one.get_kind_display()} grant", tone="danger")]
            if one.paid_amount is not None:
                acts.insert(0, Button("Refund", subject.address("refund", one.pk), "the grant"))
            is_open = one.remaining and one.voided_at is None and one.expired_at is None
            values.append(acts if is_open else [])
        rows.append(Row(values, is_over=not one.remaining))
    return Table("Grants", columns, rows, "Nothing was granted yet.", id="grants")


def _purchases(tenant: Tenant) -> Table:
    """Return what was bought at the payment provider, with what is lost: credit that was spent before its money went
    back.
    """
    columns = [
        *(Column("Purchase", "name"), Column("State", "state"), Column("Credits", "balance")),
        *(Column("Taken back", "balance"), Column("Lost", "balance"), Column("Begun", "time")),
    ]
    tones = {Purchase.State.PAID: "good", Purchase.State.REFUSED: "bad", Purchase.State.PENDING: "warn"}
    rows = [
        Row(
            [
                Cell(format_money(one.price, one.currency), detail=one.payment or ""),
                State(one.get_state_display().capitalize(), tones.get(Purchase.State(one.state), "")),
                *(one.amount, one.taken or None, one.lost or None, one.created_at),
            ],
            is_over=one.state in (Purchase.State.OPEN, Purchase.State.FAILED),
        )
        for one in Purchase.objects.filter(tenant=tenant).order_by("-created_at")[:PAGE]
    ]
    return Table("Purchases", columns, rows, "Nothing was bought.", id="purchases")


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _paid(grant: CreditGrant) -> str:
    if grant.paid_amount is None:
        return ""
    paid = f"{format_money(grant.paid_amount, grant.currency)} paid"
    paid += f" ({grant.paid_reference})" if grant.paid_reference else ""
    if grant.refunded_amount is None:
        return paid
    return f"{paid}, {format_money(grant.refunded_amount, grant.currency)} paid back ({grant.refund_reference})"


def _source(grant: CreditGrant) -> str:
    hidden = ("month:", "upgrade:", "operator", "admin", "purchase:", LATER, "recurring:", "rollover:")
    return "" if grant.source.startswith(hidden) else grant.source


def _grant_state(grant: CreditGrant) -> State:
    if grant.refunded_amount is not None:
        return State("Refunded in part", "warn") if grant.remaining and not grant.voided_at else State("Refunded")
    if grant.voided_at is not None:
        return State("Voided")
    if grant.expired_at is not None:
        return State("Expired")
    return State("Open", "good") if grant.remaining else State("Used up")


def _ledger(wallet_id: UUID, before: LedgerCursor | None) -> Table:
    page = ledger_of(wallet_id, limit=PAGE, before=before)
    columns = [
        Column("Booked", "time"),
        Column("What"),
        Column("Credits", "balance"),
        Column("Balance after", "balance"),
        Column("Why", "wraps"),
    ]
    rows = [
        Row([line.transfer.booked_at, WORDS[Code(line.transfer.code)], line.amount, line.balance, _why(line)])
        for line in page.lines
    ]
    older = ""
    if page.next is not None:
        older = "?" + urlencode({"before": signing.dumps([page.next.id, page.next.balance], salt=_SALT)}) + "#ledger"
    newest = "?" if before else ""
    return Table(
        "Ledger", columns, rows, "Nothing has moved yet.", newest, older, words=("Newest", "Older"), id="ledger"
    )


def _why(line: LedgerLine) -> Any:
    transfer = line.transfer
    if transfer.request is not None:
        try:
            href = reverse("operate-request", args=[transfer.request])
            return Cell(f"request …{str(transfer.request)[-8:]}", href, reason_of(transfer))
        except NoReverseMatch:
            return short_id(transfer.request)
    return Cell(reason_of(transfer), detail=transfer.actor if "@" in transfer.actor else "")


def _cursor(request: HttpRequest) -> LedgerCursor | None:
    """Return where the page of the ledger begins, signed since it carries a balance; 404 for another text."""
    if not (text := request.GET.get("before", "")):
        return None
    try:
        identifier, balance = signing.loads(text, salt=_SALT)
    except (signing.BadSignature, ValueError):
        raise Http404 from None
    return LedgerCursor(identifier, balance)


@require_safe
@operator_page("gateway.view_tenant", "billing.view_subscription")
def limits(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show the terms of the plan, the days for which rows are kept, and the limits of single keys."""
    subject = Subject.of(desk, slug)
    tenant, one = subject.tenant, subject.subscription
    change = ("Change plan", "plan", "billing.change_subscription")
    sections = []
    if one is None:
        choose = subject.buttons(("Choose a plan", "plan", "billing.add_subscription"))
        sections.append(Section("Plan", "It has no plan: its requests are refused.", buttons=choose))
    else:
        months = [("Months counted from", moment(one.anchor)), ("In the zone", one.time_zone)]
        ends = subject.buttons(change, ("End subscription", "end", "billing.change_subscription"))
        sections.append(Section(f"Plan {one.version}", facts=[*terms_in_words(one.version), *months], buttons=ends))
    kept = [
        ("Stored responses", tenant.get_response_storage_display()),
        ("Tools that would run at a provider", tenant.get_hosted_tools_display()),
        *((name, _days(tenant, field)) for field, name in KEPT.items()),
    ]
    sections.append(Section("What it keeps", facts=kept, buttons=subject.buttons(SETTINGS)))
    if desk.may("gateway.view_apikey"):
        sections.append(Section("Keys with limits of their own", table=_limited_keys(subject)))
    return subject.page(request, "operate-tenant-limits", sections)


KEPT = {
    "response_days": "Stored responses are kept",
    "file_days": "Files are kept",
    "batch_days": "Batches that have ended are kept",
    "refusal_days": "Refused requests are kept",
}


def _days(tenant: Tenant, name: str) -> str:
    own = getattr(tenant, name)
    return f"{own} days" if own is not None else f"{tenants.most_days(name)} days, as this installation"


def terms_in_words(version: PlanVersion) -> list[tuple[str, str]]:
    """Return a plan's terms, each with its name and figures."""
    found = [
        ("Requests", _rate(grouped(version.request_limit), version.request_period_s, grouped(version.request_burst))),
        ("Credits", _rate(_exactly(version.credit_limit), version.credit_period_s, _exactly(version.credit_burst))),
        ("Requests at the same time", grouped(version.concurrency)),
        ("Credits a month", _exactly(version.monthly_credits)),
        ("Models", ", ".join(version.allowed_models) or "all, also those to come"),
        ("Adapters of its own", grouped(version.adapters)),
        ("Share of the engine", f"× {version.weight / 1000:g}"),
    ]
    if version.token_limit is not None:
        burst = grouped(version.token_burst or version.token_limit)
        found.insert(2, ("Tokens", _rate(grouped(version.token_limit), version.token_period_s, burst)))
    if version.priority:
        found.append(("Priority", str(version.priority)))
    if version.multiplier_bp != 10_000:
        found.append(("Prices", f"× {version.multiplier_bp / 10_000:g}"))
    if (version.flex_bp, version.priority_bp) != (10_000, 10_000):
        found.append(("Flex", f"× {version.flex_bp / 10_000:g}"))
        found.append(("Priority requests", f"× {version.priority_bp / 10_000:g}"))
    if version.rollover:
        found.append(("Rolls over", f"{_exactly(version.rollover)} credits for one month more"))
    if promise := promises.terms_in_words(version):
        found.append(("Promise", promise))
    if version.overage != PlanVersion.Overage.BLOCK:
        invoiced = ", invoiced each month" if version.overage == PlanVersion.Overage.INVOICE else ""
        found.append(("Overdraft", f"{_exactly(version.overdraft_limit)} credits{invoiced}"))
    return found


def _exactly(micro: int) -> str:
    return format_credits(micro, separator=",")


def _rate(number: str, seconds: int, burst: str) -> str:
    period = {60: "a minute", 3600: "an hour", 86_400: "a day"}.get(seconds)
    if period is None:
        period = f"in {seconds // 3600} hours" if seconds % 3600 == 0 else f"in {grouped(seconds)} s"
    return f"{number} {period}, at most {burst} at once"


def _limited_keys(subject: Subject) -> Table:
    rates = [Q(**{f"{name}__isnull": False}) for name, limit in LIMITS.items() if not limit.is_spend]
    limited = ~Q(allowed_models=[]) | ~Q(networks=[]) | Q(id__in=limited_keys(subject.tenant.id))
    for one in rates:
        limited |= one
    found = APIKey.objects.of(subject.tenant).filter(limited, revoked_at=None).select_related("project")
    rows = [
        Row([Cell(one.name, detail=f"…{one.last_four}"), one.project.name, "; ".join(limits_in_words(one)) or "none"])
        for one in with_spending(found.order_by("-id")[:PAGE])
    ]
    columns = [Column("Key", "name"), Column("Project", "wraps"), Column("Limits", "wraps")]
    return Table(
        "Keys with limits of their own", columns, rows, "All keys may do what the plan lets them.", id="limits"
    )
