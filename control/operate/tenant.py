"""One tenant: its head with state, credit and actions, and a tab for each thing that it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core import signing
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from base.units import format_credits
from billing.models import CreditGrant, PlanVersion, ScheduledGrant, Subscription
from billing.selectors.balances import Balance, balance_of
from billing.selectors.ledger import LedgerCursor, LedgerLine, ledger_of
from billing.selectors.usage import usage_by_day
from billing.services.budgets import Standing, limited_keys
from control.operate.base import Desk, operator_page
from control.operate.tenants import DAYS, state_of
from control.screens import audit as trail
from control.screens import viewing
from control.screens.budgets import budgets_table
from control.screens.charts import Chart, Tile, stacked
from control.screens.figures import amount, day, grouped, moment, short_id, show_charge, show_credits
from control.screens.key_forms import limits_in_words
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Invitation, Membership, Project, Tenant
from tenancy.services import tenants
from tenancy.services.restrictions import LIMITS, with_spending

PAGE = 50
_SALT = "control.operate.ledger"
_TABS = (
    ("Overview", "operate-tenant", ""),
    ("Requests", "operate-requests", "billing.view_usagerecord"),
    ("People", "operate-tenant-people", "gateway.view_membership"),
    ("Keys", "operate-tenant-keys", "gateway.view_apikey"),
    ("Projects", "operate-tenant-projects", "gateway.view_project"),
    ("Wallet", "operate-tenant-wallet", "billing.view_wallet"),
    ("Limits", "operate-tenant-limits", "billing.view_subscription"),
    ("Audit", "operate-tenant-audit", "gateway.view_auditevent"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a tab: any of a text, facts, a chart, a table, buttons, and actions with what follows from each."""

    title: str
    text: str = ""
    facts: Sequence[tuple[str, Any]] = ()
    chart: Chart | None = None
    table: Table | None = None
    buttons: Sequence[Button] = ()
    choices: Sequence[tuple[Button, str]] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """The tenant of a page, with what its head shows."""

    tenant: Tenant
    desk: Desk
    subscription: Subscription | None
    balance: Balance | None

    @classmethod
    def of(cls, desk: Desk, slug: str) -> Subject:
        """Return the tenant named `slug`; 404 where there is none."""
        tenant = get_object_or_404(Tenant, slug=slug)
        sees_credit = desk.may("billing.view_wallet")
        active = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE)
        subscription = active.select_related("version__plan", "next_version__plan").first()
        return cls(tenant, desk, subscription, balance_of(tenant.pk) if sees_credit else None)

    def address(self, name: str = "", *args: Any) -> str:
        """Return the address of a page or action of the tenant."""
        return reverse(f"operate-tenant-{name}" if name else "operate-tenant", args=[self.tenant.slug, *args])

    def buttons(self, *wanted: tuple[str, str, str], tone: str = "quiet", **options: Any) -> list[Button]:
        """Return those of (name, action, permission) that the operator may do."""
        return [
            Button(name, self.address(action), tone=tone, **options)
            for name, action, permission in wanted
            if self.desk.may(permission)
        ]

    def actions(self) -> list[Button]:
        """Return what stands in the head; of an erased tenant nothing is left to do."""
        if self.tenant.erased_at is not None:
            return []
        found = self.buttons(("Grant credit", "grant", "billing.add_creditgrant"), tone="")
        plan = ("Change plan", "plan", "billing.change_subscription")
        if self.subscription is None:
            plan = ("Choose a plan", "plan", "billing.add_subscription")
        found += self.buttons(
            plan, ("Invite", "invite", "gateway.add_invitation"), ("New key", "key-new", "gateway.add_apikey")
        )
        if viewing.may_view(self.desk.user, self.tenant):
            found.append(Button("See as owner", self.address("view")))
        ends = ("Suspend", "suspend") if self.tenant.is_active else ("Activate", "activate")
        tone = "danger" if self.tenant.is_active else "quiet"
        return found + self.buttons((*ends, "gateway.change_tenant"), tone=tone)

    def tabs(self, current: str) -> list[tuple[str, str, bool]]:
        """Return the tabs that the operator's role sees: name, address, and whether it is open."""
        found = []
        for title, name, needs in _TABS:
            if needs and not self.desk.may(needs):
                continue
            if name == "operate-requests":
                try:
                    found.append((title, f"{reverse(name)}?{urlencode({'tenant': self.tenant.slug})}", False))
                except NoReverseMatch:
                    continue
            else:
                found.append((title, reverse(name, args=[self.tenant.slug]), name == current))
        return found

    def tiles(self) -> list[Tile]:
        """Return the figures of its credit."""
        if self.balance is None:
            return []
        one, href = self.balance, self.address("wallet")
        overdraft = (
            f"{show_credits(one.overdraft_limit)} of it overdraft" if one.overdraft_limit else "can be spent now"
        )
        return [
            Tile("Available", amount(one.available, is_charge=False), overdraft, href),
            Tile("Held", amount(one.held), "for requests that run", href),
            Tile(
                "Expires next",
                amount(one.expiring, is_charge=False),
                day(one.expires_at and one.expires_at.date(), "nothing"),
                href,
            ),
        ]

    def plan_in_words(self) -> str:
        """Return the plan, and what becomes of it with its month."""
        one = self.subscription
        if self.tenant.erased_at is not None or not self.desk.may("billing.view_subscription"):
            return ""
        if one is None:
            return "no plan: its requests are refused"
        ends = day(one.granted_until and one.granted_until.date())
        if one.is_ending:
            return f"plan {one.version}, ends on {ends}"
        return f"plan {one.version}" + (f", {one.next_version} from {ends} on" if one.next_version else "")

    def page(self, request: HttpRequest, tab: str, sections: Sequence[Section], **more: Any) -> HttpResponse:
        """Answer with a tab."""
        context = self.desk.context(
            page="tenants",
            subject=self,
            state=state_of(self.tenant, is_frozen=bool(self.balance and self.balance.is_frozen)),
            sections=sections,
            tab=tab,
            shown_tabs=self.tabs(tab),
            tiles=self.tiles(),
            **more,
        )
        return render(request, "operate/tenant.html", context)


@require_safe
@operator_page("gateway.view_tenant")
def overview(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show what the tenant used, what it is, and what else can be done with it."""
    subject = Subject.of(desk, slug)
    tenant = subject.tenant
    sections = []
    if desk.may("billing.view_usagerecord"):
        sections.append(_used(tenant))
    facts: list[tuple[str, Any]] = [
        ("Name", tenant.name),
        ("Short name", tenant.slug),
        ("Id", short_id(tenant.pk)),
        ("Made", moment(tenant.created_at)),
        ("Stored responses", tenant.get_response_storage_display()),
        ("Tools that would run at a provider", tenant.get_hosted_tools_display()),
    ]
    if tenant.erased_at is not None:
        facts.append(("Erased", moment(tenant.erased_at)))
    sections.append(Section("About it", facts=facts, buttons=_settings(subject)))
    if choices := _others(subject):
        sections.append(Section("What else can be done", choices=choices))
    return subject.page(request, "operate-tenant", sections)


def _settings(subject: Subject) -> list[Button]:
    if subject.tenant.erased_at is not None:
        return []
    return subject.buttons(("Change settings", "settings", "gateway.change_tenant"))


def _used(tenant: Tenant) -> Section:
    """Return the credits charged per day and model; a day leads to its requests."""
    today = timezone.now().date()
    days = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    names = {one: f"{one.day} {one:%b}" for one in days}
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for row in usage_by_day(tenant.pk, days[0], today, by=("model",)):
        cells[names[row.day], row.model or ""] += row.charge
    by_name = {name: one for one, name in names.items()}

    def requests_of(name: str) -> str:
        since = by_name[name]
        asked = {
            "tenant": tenant.slug,
            "since": f"{since}T00:00:00Z",
            "until": f"{since + timedelta(days=1)}T00:00:00Z",
        }
        try:
            return f"{reverse('operate-requests')}?{urlencode(asked)}"
        except NoReverseMatch:
            return ""

    chart = stacked(
        cells, list(names.values()), show=show_charge, axis=show_credits, href=requests_of, unit="Day (UTC)"
    )
    text = "" if chart.names else "Nothing was charged in these days."
    return Section(f"Credits charged in {DAYS} days", text, chart=chart)


def _others(subject: Subject) -> list[tuple[Button, str]]:
    """Return the rarer actions, each with what follows from it."""
    if subject.tenant.erased_at is not None:
        return []
    is_frozen = subject.balance is not None and subject.balance.is_frozen
    freeze = "Unfreeze wallet" if is_frozen else "Freeze wallet"
    freezes = "Requests hold credit again." if is_frozen else "New requests are refused; its keys and people stay."
    wanted = [
        ("Adjust credit", "adjust", "billing.add_ledgertransfer", "Corrects the balance up or down, with a reason."),
        (freeze, "freeze", "billing.change_wallet", freezes),
        ("Export", "export", "gateway.change_tenant", "Everything that it has as one archive, without secrets."),
        ("Erase", "erase", "gateway.delete_tenant", "Names, people, keys and content go; the books stay, nameless."),
    ]  # fmt: skip
    if subject.subscription is not None:
        ends = "Without a plan its requests are refused."
        wanted.insert(2, ("End subscription", "end", "billing.change_subscription", ends))
    found = []
    for name, action, permission, text in wanted:
        tone = "danger" if action == "erase" else "quiet"
        found += [(button, text) for button in subject.buttons((name, action, permission), tone=tone)]
    admin = Button("Open in admin", reverse("admin:gateway_tenant_change", args=[subject.tenant.pk]))
    return [*found, (admin, "Its row in the tables.")]


@require_safe
@operator_page("gateway.view_tenant", "gateway.view_membership")
def people(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show members and open invitations."""
    subject = Subject.of(desk, slug)
    tenant = subject.tenant
    may_change = desk.may("gateway.change_membership")
    found = Membership.objects.of(tenant).select_related("user").order_by("-is_active", "user__email")[: PAGE * 4]
    columns = [Column("Person", "name"), Column("Role"), Column("State", "state"), Column("Since", "time")]
    rows = []
    for one in found:
        name = Cell(one.user.email, reverse("operate-person", args=[one.user_id]), detail=one.user.name)
        values: list[Any] = [name, one.get_role_display(), _member_state(one), one.created_at]
        if may_change:
            address = subject.address("member", one.pk)
            values.append([Button("Change", address, one.user.email)] if one.is_active else [])
        rows.append(Row(values, is_over=not one.is_active))
    buttons = [Column("Actions", "buttons", is_hidden=True)]
    table = Table("Members", columns + buttons * may_change, rows, "Nobody has joined yet.", id="members")
    sections = [Section("Members", table=table, buttons=_inviting(subject))]
    if desk.may("gateway.view_invitation"):
        sections.append(Section("Open invitations", table=_invitations(request, subject)))
    return subject.page(request, "operate-tenant-people", sections)


def _inviting(subject: Subject) -> list[Button]:
    if subject.tenant.erased_at is not None:
        return []
    return subject.buttons(("Invite", "invite", "gateway.add_invitation"))


def _member_state(one: Membership) -> State:
    if not one.is_active:
        return State("Removed")
    return State("Active", "good") if one.user.is_active else State("Person deactivated", "warn")


def _invitations(request: HttpRequest, subject: Subject) -> Table:
    now = timezone.now()
    may_end = subject.desk.may("gateway.delete_invitation")
    found = Invitation.objects.of(subject.tenant).filter(accepted_at=None).order_by("-expires_at")[: PAGE * 2]
    columns = [Column("Address", "name"), Column("Role"), Column("State", "state"), Column("Ends", "time")]
    rows = []
    for one in found:
        is_open = one.expires_at > now
        state = State("Waits", "warn") if is_open else State("Too old")
        values: list[Any] = [one.email, one.get_role_display(), state, one.expires_at]
        if may_end:
            values.append([Button("Take back", subject.address("withdraw", one.pk), one.email, post=True)])
        rows.append(Row(values, is_over=not is_open))
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_end
    return Table("Open invitations", columns, rows, "None is open.", id="invitations", csrf=get_token(request))


@require_safe
@operator_page("gateway.view_tenant", "gateway.view_apikey")
def keys(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show keys, newest first, and admin keys."""
    subject = Subject.of(desk, slug)
    mine = APIKey.objects.of(subject.tenant).select_related("project", "created_by").order_by("-id")
    before = _uuid(request.GET.get("before", ""))
    found = with_spending((mine.filter(id__lt=before) if before else mine)[: PAGE + 1])
    may_change = desk.may("gateway.change_apikey")
    columns = [
        Column("Key", "name"),
        Column("Project", "wraps"),
        Column("State", "state"),
        Column("Own limits", "wraps"),
        Column("Last used", "time"),
        Column("Made", "time"),
    ] + [Column("Actions", "buttons", is_hidden=True)] * may_change
    rows = []
    for one in found[:PAGE]:
        state = key_state(one)
        name = Cell(one.name, detail=f"{one.prefix}…{one.last_four}" if one.last_four else "")
        by = Cell(one.created_at, detail=one.created_by.email if one.created_by else "")
        limits = "; ".join(limits_in_words(one)) or "those of the plan"
        values: list[Any] = [name, one.project.name, state, limits, one.last_used_at, by]
        if may_change:
            acts = [
                Button("Rename", subject.address("key-rename", one.pk), one.name),
                Button("Revoke", subject.address("key-revoke", one.pk), one.name, tone="danger"),
            ]
            values.append(acts if one.revoked_at is None else [])
        rows.append(Row(values, is_over=state.word != "Active"))
    older = f"?before={found[PAGE - 1].pk}" if len(found) > PAGE else ""
    table = Table(
        "Keys", columns, rows, "It has no key yet.", "?" if before else "", older, words=("Newest", "Older"), id="keys"
    )
    making = [] if subject.tenant.erased_at else subject.buttons(("New key", "key-new", "gateway.add_apikey"))
    sections = [Section("Keys", table=table, buttons=making)]
    if desk.may("gateway.view_adminapikey"):
        sections.append(Section("Admin keys", table=_admin_keys(request, subject)))
    return subject.page(request, "operate-tenant-keys", sections)


def key_state(key: APIKey | AdminAPIKey) -> State:
    """Return whether a key works now."""
    if key.revoked_at is not None:
        return State("Revoked")
    is_over = key.expires_at is not None and key.expires_at <= timezone.now()
    return State("Expired", "warn") if is_over else State("Active", "good")


def _admin_keys(request: HttpRequest, subject: Subject) -> Table:
    may_change = subject.desk.may("gateway.change_adminapikey")
    found = AdminAPIKey.objects.of(subject.tenant).select_related("created_by").order_by("-id")[:PAGE]
    columns = [Column("Key", "name"), Column("State", "state"), Column("Made by"), Column("Last used", "time")]
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_change
    rows = []
    for one in found:
        values: list[Any] = [
            Cell(one.name, detail=f"…{one.last_four}" if one.last_four else ""),
            key_state(one),
            one.created_by.email if one.created_by else "–",
            one.last_used_at,
        ]
        if may_change:
            address = subject.address("admin-key-revoke", one.pk)
            revoke = [Button("Revoke", address, one.name, tone="danger")]
            values.append(revoke if one.revoked_at is None else [])
        rows.append(Row(values, is_over=one.revoked_at is not None))
    return Table("Admin keys", columns, rows, "It has none: its owners make them.", id="admin-keys")


@require_safe
@operator_page("gateway.view_tenant", "gateway.view_project")
def projects(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show projects with how many keys each has."""
    subject = Subject.of(desk, slug)
    works = Count("api_keys", filter=Q(api_keys__revoked_at=None))
    found = Project.objects.of(subject.tenant).annotate(keys=works).order_by("-is_active", "name")[: PAGE * 4]
    may_change = desk.may("gateway.change_project")
    columns = [Column("Project", "name"), Column("State", "state"), Column("Keys", "number"), Column("Made", "time")]
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_change
    rows = []
    for one in found:
        state = State("Active", "good") if one.is_active else State("Archived")
        values: list[Any] = [one.name, state, one.keys, one.created_at]
        if may_change:
            acts = [
                Button("Rename", subject.address("project-rename", one.pk), one.name),
                Button("Archive", subject.address("project-archive", one.pk), one.name, tone="danger"),
            ]
            values.append(acts if one.is_active else [])
        rows.append(Row(values, is_over=not one.is_active))
    table = Table("Projects", columns, rows, "It has no project.", id="projects")
    making = [] if subject.tenant.erased_at else subject.buttons(("New project", "project-new", "gateway.add_project"))
    return subject.page(request, "operate-tenant-projects", [Section("Projects", table=table, buttons=making)])


@require_safe
@operator_page("gateway.view_tenant", "billing.view_wallet")
def wallet(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show grants with what is left of them, and the ledger with its running balance."""
    subject = Subject.of(desk, slug)
    if subject.balance is None:
        return subject.page(request, "operate-tenant-wallet", [Section("Wallet", "It has no wallet yet.")])
    freeze = "Unfreeze" if subject.balance.is_frozen else "Freeze"
    acts: list[Button] = []
    if subject.tenant.erased_at is None:
        acts = subject.buttons(
            ("Grant credit", "grant", "billing.add_creditgrant"),
            ("Adjust", "adjust", "billing.add_ledgertransfer"),
            (freeze, "freeze", "billing.change_wallet"),
        )
    sections = []
    before = _cursor(request)
    if desk.may("billing.view_creditgrant") and before is None:
        sections += [Section("Grants", table=_grants(subject, subject.balance.wallet), buttons=acts)]
    if before is None:
        sections += [_budgets(subject)]
    if desk.may("billing.view_ledgertransfer"):
        sections += [Section("Ledger", table=_ledger(subject.balance.wallet, before))]
    return subject.page(request, "operate-tenant-wallet", sections)


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
        name = Cell(coming.get_kind_display(), detail=coming.reason)
        values = [name, State("To come", "warn"), coming.amount, None, coming.expires_at, coming.begins_at]
        rows.append(Row([*values, *[[]] * may_end]))
    mine = CreditGrant.objects.filter(wallet=wallet_id)
    left = list(mine.filter(remaining__gt=0).order_by("priority", "expires_at", "created_at")[:PAGE])
    over = list(mine.filter(remaining=0).order_by("-created_at")[:10])
    for one in [*left, *over]:
        values = [
            Cell(one.get_kind_display(), detail=_paid(one) or _source(one)),
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


def _paid(grant: CreditGrant) -> str:
    if grant.paid_amount is None:
        return ""
    paid = f"{money(grant.paid_amount, grant.currency)} paid"
    if grant.refunded_amount is None:
        return paid
    return f"{paid}, {money(grant.refunded_amount, grant.currency)} paid back ({grant.refund_reference})"


def _source(grant: CreditGrant) -> str:
    return "" if grant.source.startswith(("month:", "upgrade:", "operator", "admin")) else grant.source


def money(minor: int, currency: str) -> str:
    """Return an amount of money; most currencies have a hundred minor units."""
    if currency in _WHOLE:
        return f"{grouped(minor)} {currency}"
    return f"{minor // 100:,}.{minor % 100:02d} {currency}"


_WHOLE = frozenset(
    {"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF"}
)


def _grant_state(grant: CreditGrant) -> State:
    if grant.refunded_amount is not None:
        return State("Refunded")
    if grant.voided_at is not None:
        return State("Voided")
    if grant.expired_at is not None:
        return State("Expired")
    return State("Open", "good") if grant.remaining else State("Used up")


_CODES = {
    1: "Granted", 2: "Charged", 3: "Corrected charge", 4: "Expired", 5: "Voided", 6: "Adjusted",
    7: "Overdraft repaid", 8: "Refunded",
}  # fmt: skip


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
        Row([line.transfer.booked_at, _CODES[line.transfer.code], line.amount, line.balance, _why(line)])
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
            return Cell(f"request …{str(transfer.request)[-8:]}", reverse("operate-request", args=[transfer.request]))
        except NoReverseMatch:
            return short_id(transfer.request)
    return Cell(transfer.reason, detail=transfer.actor if "@" in transfer.actor else "")


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
    """Show what the plan lets the tenant do, how long it keeps what, and the limits of single keys."""
    subject = Subject.of(desk, slug)
    tenant, one = subject.tenant, subject.subscription
    change = ("Change plan", "plan", "billing.change_subscription")
    sections = []
    if one is None:
        choose = [] if tenant.erased_at else subject.buttons(("Choose a plan", "plan", "billing.add_subscription"))
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
    sections.append(Section("What it keeps", facts=kept, buttons=_settings(subject)))
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
    """Return a plan's terms: what each is of, and the figures."""
    found = [
        ("Requests", _rate(grouped(version.request_limit), version.request_period_s, grouped(version.request_burst))),
        ("Credits", _rate(_exactly(version.credit_limit), version.credit_period_s, _exactly(version.credit_burst))),
        ("Requests at the same time", grouped(version.concurrency)),
        ("Credits a month", _exactly(version.monthly_credits)),
        ("Models", ", ".join(version.allowed_models) or "all, also those to come"),
        ("Adapters of its own", grouped(version.adapters)),
        ("Share of the engine", f"× {version.weight / 1000:g}"),
    ]
    if version.priority:
        found.append(("Priority", str(version.priority)))
    if version.multiplier_bp != 10_000:
        found.append(("Prices", f"× {version.multiplier_bp / 10_000:g}"))
    if version.overage == PlanVersion.Overage.OVERDRAFT:
        found.append(("Overdraft", f"{_exactly(version.overdraft_limit)} credits"))
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


@require_safe
@operator_page("gateway.view_tenant", "gateway.view_auditevent")
def audit(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show the tenant's audit trail."""
    subject = Subject.of(desk, slug)
    asked = trail.Asked.of(request.GET)
    events = AuditEvent.objects.of(subject.tenant).select_related("tenant")
    table = trail.audit_table(asked.rows(events), asked, for_operator=True)
    sections = [Section("Audit trail", table=table)]
    choices = asked.choices(trail.OF_TENANTS)
    return subject.page(request, "operate-tenant-audit", sections, asked=asked, choices=choices)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
