"""One tenant: what it used, its people, keys and projects, and its audit trail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing.selectors.promises import kept_in
from billing.selectors.usage import MOST_RECORDED, TimeSum, recorded_by, usage_by_day
from control.operate.base import Desk, operator_page
from control.operate.subject import PAGE, SETTINGS, Section, Subject
from control.operate.tenants import DAYS
from control.screens import audit as trail
from control.screens.charts import stacked
from control.screens.figures import grouped, moment, share, short_id, show_charge, show_credits
from control.screens.key_forms import limits_in_words
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import AdminAPIKey, APIKey, AuditEvent, Invitation, Membership, Project, Tenant, User
from tenancy.services.restrictions import with_spending


@require_safe
@operator_page("gateway.view_tenant")
def overview(request: HttpRequest, desk: Desk, slug: str) -> HttpResponse:
    """Show the tenant's usage, its facts, and the rarer acts on it."""
    subject = Subject.of(desk, slug)
    tenant = subject.tenant
    sections = []
    if desk.may("billing.view_usagerecord"):
        sections.append(_used(tenant))
        sections += _promised(tenant)
        sections += _told_apart(tenant)
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
    sections.append(Section("About it", facts=facts, buttons=subject.buttons(SETTINGS)))
    if choices := _others(subject):
        sections.append(Section("What else can be done", choices=choices))
    return subject.page(request, "operate-tenant", sections)


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


def _promised(tenant: Tenant) -> list[Section]:
    """Return how the promise of its plan was kept; nothing where there was none."""
    today = timezone.now().date()
    found = kept_in(today - timedelta(days=DAYS - 1), today, tenant.pk)
    if not found.counted:
        return []
    facts: list[tuple[str, Any]] = [
        ("Kept", f"{share(found.kept, found.counted)} of {grouped(found.counted)} requests"),
        ("Missed", grouped(found.missed)),
        ("Given back", f"{show_credits(found.credited)} credits"),
    ]
    return [Section(f"Its plan’s promise in {DAYS} days", facts=facts)]


def _told_apart(tenant: Tenant) -> list[Section]:
    """Return usage by endpoint, and by member in the chat, of the newest requests; nothing without any."""
    until = timezone.now()
    since = until - timedelta(days=DAYS)
    by_endpoint, reached = recorded_by("month", tenant.pk, since, until, by=("endpoint",))
    by_member, _ = recorded_by("month", tenant.pk, since, until, by=("user",), matching=Q(api_key=None))
    emails = dict(User.objects.filter(pk__in={one.group[0] for one in by_member}).values_list("pk", "email"))
    note = f"The newest {MOST_RECORDED:,} requests, since {reached:%-d %b, %H:%M} UTC." if reached else ""
    tables = [
        _sums("Endpoint", ((one.group[0] or "not noted", one) for one in by_endpoint), note),
        _sums("Member in the chat", ((emails.get(one.group[0], "not known"), one) for one in by_member), note),
    ]
    return [Section(f"By {one.name.lower()}", table=one) for one in tables if one.rows]


def _sums(name: str, found: Iterable[tuple[str, TimeSum]], note: str) -> Table:
    """Return the sums of each group, the dearest first."""
    sums: dict[str, TimeSum] = {}
    for label, one in found:
        sums[label] = sums[label].plus(one) if label in sums else one
    columns = [
        Column(name, "name"), Column("Requests", "number"), Column("Input", "number"), Column("Cached", "number"),
        Column("Output", "number"), Column("Credits", "credits"),
    ]  # fmt: skip
    rows = [
        Row([label, one.requests, one.input_tokens, one.cache_read_tokens, one.output_tokens, one.charge])
        for label, one in sorted(sums.items(), key=lambda item: (-item[1].charge, item[0]))[:PAGE]
    ]
    return Table(name, columns, rows, note=note)


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
    sections = [
        Section("Members", table=table, buttons=subject.buttons(("Invite", "invite", "gateway.add_invitation")))
    ]
    if desk.may("gateway.view_invitation"):
        sections.append(Section("Open invitations", table=_invitations(request, subject)))
    return subject.page(request, "operate-tenant-people", sections)


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
    making = subject.buttons(("New key", "key-new", "gateway.add_apikey"))
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
    making = subject.buttons(("New project", "project-new", "gateway.add_project"))
    return subject.page(request, "operate-tenant-projects", [Section("Projects", table=table, buttons=making)])


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
