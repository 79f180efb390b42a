"""People: operators and members, what each may, and what an operator does with an account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from allauth.mfa.models import Authenticator
from django import forms
from django.contrib import messages
from django.contrib.auth.models import Group
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods, require_safe

from base.database.connections import without_limits
from base.errors import RoleError, ServiceError
from control.belongings import erasure
from control.operate.asks import METHODS, Ask, ReasonForm, answered, bound, to_copy
from control.operate.base import Desk, operator_page
from control.operate.lists import Listing
from control.operate.subject import Section
from control.operate.tenant import key_state
from control.operate.tenant_acts import WAIT_SECONDS
from control.screens import audit as trail
from control.screens.figures import moment, short_id
from control.screens.forms import TypedForm
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.audit.origin import because
from tenancy.models import APIKey, AuditEvent, Membership, User
from tenancy.services import links, people, roles

PAGE = 50
MOST_TENANTS = 3
KINDS = {"operators": "Operators", "members": "Members of tenants", "nobody": "Neither"}
STATES = {"active": "Active", "deactivated": "Deactivated"}
_MAY = {
    "viewer": "Sees everything, changes nothing.",
    "support": "Sees everything; revokes and renames keys, takes back invitations.",
    "billing": "Sees everything; changes credit, wallets, subscriptions, plans, prices; makes vouchers, re-rates.",
    "admin": "Everything but what only superusers may do.",
}
SUPERUSER = "Everything; alone make superusers and sign-in links, and change somebody’s address."


@dataclass(frozen=True)
class Asked(Listing):
    """The filters of the list; pages begin behind addresses."""

    kind: str = ""

    @classmethod
    def of(cls, data: QueryDict) -> Asked:
        """Read the address."""
        return cls.read(data, {"kind": KINDS, "state": STATES})

    def rows(self) -> QuerySet[User]:
        """Return the people that match."""
        rows = User.objects.all()
        member = Membership.objects.unscoped().filter(user=OuterRef("pk"), is_active=True)
        if self.q:
            rows = rows.filter(Q(email__icontains=self.q) | Q(name__icontains=self.q))
        if self.kind == "operators":
            rows = rows.filter(is_staff=True)
        elif self.kind == "members":
            rows = rows.filter(Exists(member))
        elif self.kind == "nobody":
            rows = rows.filter(~Exists(member), is_staff=False)
        return rows.filter(is_active=self.state == "active") if self.state else rows


@require_safe
@operator_page("gateway.view_user")
def people_list(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Show people by address, and what each role of operators may."""
    asked = Asked.of(request.GET)
    found, previous, following = asked.turned(asked.rows(), PAGE, "email")
    memberships = _memberships(found) if desk.may("gateway.view_membership") else {}
    groups = _groups(found)
    rows = [
        Row(
            [
                Cell(one.email, reverse("operate-person", args=[one.pk]), detail=one.name),
                state_of(one),
                role_in_words(one, groups.get(one.pk, ())) if one.is_staff else "–",
                _tenants(memberships.get(one.pk, ())),
                one.last_login,
            ],
            is_over=not one.is_active,
        )
        for one in found
    ]
    columns = [
        Column("Person", "name"),
        Column("State", "state"),
        Column("Operator", "wraps"),
        Column("Tenants", "wraps"),
        Column("Last sign-in", "time"),
    ]
    empty = "Nobody matches these filters." if asked.is_filtered else "There is nobody yet."
    table = Table("People", columns, rows, empty, previous, following, words=("Previous", "Next"), id="people")
    context = desk.context(
        page="people",
        asked=asked,
        table=table,
        kinds=KINDS.items(),
        states=STATES.items(),
        roles=_roles(),
        may_make=desk.may("gateway.add_user"),
    )
    return render(request, "operate/people.html", context)


def _memberships(found: Sequence[User]) -> dict[UUID, list[Membership]]:
    mine = Membership.objects.unscoped().filter(user__in=[one.pk for one in found], is_active=True)
    by_user: dict[UUID, list[Membership]] = defaultdict(list)
    for one in mine.select_related("tenant").order_by("tenant__name"):
        by_user[one.user_id].append(one)
    return by_user


def _groups(found: Sequence[User]) -> dict[UUID, list[str]]:
    pairs = Group.objects.filter(user__in=[one.pk for one in found]).order_by("name").values_list("user", "name")
    by_user: dict[UUID, list[str]] = defaultdict(list)
    for user, name in pairs:
        by_user[user].append(name)
    return by_user


def state_of(user: User) -> State:
    """Return a person's state in a word."""
    if user.email.endswith("@erased.invalid"):
        return State("Erased")
    return State("Active", "good") if user.is_active else State("Deactivated", "bad")


def role_in_words(user: User, groups: Iterable[str]) -> str:
    """Return the roles of an operator."""
    if user.is_superuser:
        return "superuser"
    return ", ".join(groups) or "no role yet"


def _tenants(mine: Sequence[Membership]) -> Any:
    if not mine:
        return "–"
    html = '<a href="{}">{}</a> ({})'
    shown = format_html_join(
        ", ",
        html,
        ((reverse("operate-tenant", args=[one.tenant.slug]), one.tenant.name, one.role) for one in mine[:MOST_TENANTS]),
    )
    more = f" and {len(mine) - MOST_TENANTS} more" if mine[MOST_TENANTS:] else ""
    return format_html("<span>{}{}</span>", shown, more)


def _roles() -> list[tuple[str, str]]:
    """Return each role with what it may."""
    found = []
    for group in Group.objects.prefetch_related("permissions").order_by("name"):
        own = ", ".join(sorted(one.name.removeprefix("Can ") for one in group.permissions.all()))
        found.append(
            (group.name, _MAY.get(group.name) or f"May {own}." if own or group.name in _MAY else "Nothing yet.")
        )
    return [*found, ("superuser", SUPERUSER)]


@require_safe
@operator_page("gateway.view_user")
def person(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show a person: account, tenants, keys that they made, and what they did last."""
    user = get_object_or_404(User, pk=pk)
    groups = list(user.groups.order_by("name").values_list("name", flat=True))
    factors = list(Authenticator.objects.filter(user=user).order_by("type").values_list("type", flat=True))
    operator = f"yes: {role_in_words(user, groups)}" if user.is_staff else "no"
    facts = [
        ("Name", user.name or "–"),
        ("Operator", operator),
        ("Second factor", ", ".join(_FACTORS.get(one, one) for one in factors) or "none"),
        ("Password", "set" if user.has_usable_password() else "none: signs in by link"),
        ("Joined", moment(user.date_joined)),
        ("Last sign-in", moment(user.last_login, "never")),
        ("Id", short_id(user.pk)),
    ]
    sections = [Section("Account", facts=facts)]
    if desk.may("gateway.view_membership"):
        sections.append(Section("Tenants", table=_tenants_of(desk, user)))
    if desk.may("gateway.view_apikey"):
        sections.append(Section("Keys that they made", table=_keys_of(user)))
    if desk.may("gateway.view_auditevent"):
        asked = trail.Asked(who=user.email)
        events = AuditEvent.objects.unscoped().filter(user=user).select_related("tenant").order_by("-pk")[:10]
        more = [Button("All of it", reverse("operate-audit") + asked.query())]
        table = trail.audit_table(list(events), trail.Asked(), for_operator=True, of_one=False)
        sections.append(Section("What they did last", table=table, buttons=more))
    context = desk.context(
        page="people", person=user, state=state_of(user), sections=sections, actions=_actions(desk, user, factors)
    )
    return render(request, "operate/person.html", context)


_FACTORS = {"totp": "app", "recovery_codes": "recovery codes", "webauthn": "passkey"}


def _tenants_of(desk: Desk, user: User) -> Table:
    may_change = desk.may("gateway.change_membership")
    columns = [Column("Tenant", "name"), Column("Role"), Column("State", "state"), Column("Since", "time")]
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_change
    rows = []
    found = Membership.objects.unscoped().filter(user=user).select_related("tenant")
    for one in found.order_by("-is_active", "tenant__name")[:PAGE]:
        href = reverse("operate-tenant", args=[one.tenant.slug])
        state = State("Active", "good") if one.is_active else State("Removed")
        values: list[Any] = [Cell(one.tenant.name, href), one.get_role_display(), state, one.created_at]
        if may_change:
            address = reverse("operate-tenant-member", args=[one.tenant.slug, one.pk])
            is_over = not one.is_active or one.tenant.erased_at is not None
            values.append([] if is_over else [Button("Change", address, one.tenant.name)])
        rows.append(Row(values, is_over=not one.is_active))
    return Table("Tenants", columns, rows, "They are in no tenant.", id="tenants")


def _keys_of(user: User) -> Table:
    found = APIKey.objects.unscoped().filter(created_by=user).select_related("tenant").order_by("-id")[:20]
    columns = [Column("Key", "name"), Column("Tenant", "wraps"), Column("State", "state"), Column("Last used", "time")]
    rows = [
        Row(
            [
                Cell(one.name, reverse("operate-tenant-keys", args=[one.tenant.slug]), detail=f"…{one.last_four}"),
                one.tenant.name,
                key_state(one),
                one.last_used_at,
            ],
            is_over=one.revoked_at is not None,
        )
        for one in found
    ]
    return Table("Keys that they made", columns, rows, "They made none.", id="keys")


def _actions(desk: Desk, user: User, factors: Sequence[str]) -> list[Button]:
    """Return what the operator may do with the account: nobody changes who may do more than they."""
    if user.email.endswith("@erased.invalid"):
        return []
    found: list[Button] = []

    def add(name: str, action: str, tone: str = "quiet") -> None:
        found.append(Button(name, reverse(f"operate-person-{action}", args=[user.pk]), tone=tone))

    may_change = desk.may("gateway.change_user") and not roles.outranks(user, desk.user)
    if may_change:
        add("Change role" if user.is_staff else "Make operator", "role")
        add("Rename", "name")
    if desk.user.is_superuser:
        if user.is_active:
            add("Sign-in link", "link")
        add("Change address", "address")
        if factors and user != desk.user:
            add("Reset second factor", "factors", "danger")
    if may_change and user != desk.user:
        add(*(("Deactivate", "deactivate", "danger") if user.is_active else ("Activate", "activate")))
    if desk.may("gateway.delete_user") and not user.is_staff:
        add("Erase", "erase", "danger")
    return found


def _ask(user: User, title: str, button: str, **options: Any) -> Ask:
    back = reverse("operate-person", args=[user.pk])
    return Ask(title, button, back, user.email, "people", **options)


class GroupsField(forms.ModelMultipleChoiceField):  # type: ignore[type-arg] # can't be subscripted when it runs
    """Roles, each with what it may."""

    def label_from_instance(self, obj: Any) -> SafeString:
        """Return the role with what it may."""
        may = f": {_MAY[obj.name]}" if obj.name in _MAY else ""
        return format_html("{}{}", obj.name, may)


class RoleForm(forms.Form):
    """Whether somebody is an operator, and of which roles: those that who asks may give."""

    is_operator = forms.BooleanField(required=False, label="Operator", help_text="Signs in to the operator’s pages.")
    groups = GroupsField(
        Group.objects.none(), required=False, widget=forms.CheckboxSelectMultiple, label="Roles",
        help_text="Those that you may give. Without one an operator sees nothing.",
    )  # fmt: skip
    may_all = forms.BooleanField(required=False, label="Superuser", help_text=SUPERUSER)

    def __init__(self, *args: Any, by: User, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["groups"].queryset = roles.groups_of(by)  # type: ignore[attr-defined]
        if not by.is_superuser:
            del self.fields["may_all"]


class NewPersonForm(RoleForm):
    """A new person."""

    email = forms.EmailField(label="Address", help_text="You vouch that it is theirs.")
    name = forms.CharField(max_length=120, required=False)
    field_order = ("email", "name", "is_operator", "groups", "may_all")


@require_http_methods(METHODS)
@operator_page("gateway.add_user")
def new(request: HttpRequest, desk: Desk) -> HttpResponseBase:
    """Make a person: an operator, as members of tenants are invited there."""

    def act(asked: dict[str, Any]) -> HttpResponse:
        may_all = asked.pop("may_all", False)
        made = roles.make_person(by=desk.user, **asked)
        if may_all:
            roles.set_role(user=made, by=desk.user, is_operator=True, groups=asked["groups"], may_all=True)
        text = "They set a password by “Forgot your password?”, or sign in by a link that a superuser makes."
        messages.success(request, f"{made.email} is made. {text}")
        return redirect("operate-person", made.pk)

    follows = ["For operators. People of a tenant are invited on the tenant’s page, and choose a password there."]
    ask = Ask("New person", "Make the person", reverse("operate-people"), "People", "people", follows=follows)
    form = NewPersonForm(bound(request), by=desk.user, initial={"is_operator": True})
    return answered(request, desk, ask, form, act)


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def role(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Make a person an operator, or change or end that."""
    user = get_object_or_404(User, pk=pk)

    def act(asked: dict[str, Any]) -> str:
        roles.set_role(user=user, by=desk.user, **asked)
        if not user.is_staff:
            return f"{user.email} is no operator."
        return f"{user.email} is an operator: {role_in_words(user, [one.name for one in asked['groups']])}."

    initial = {"is_operator": user.is_staff, "groups": user.groups.all(), "may_all": user.is_superuser}
    ask = _ask(user, f"Role of {user.email}", "Save")
    return answered(request, desk, ask, RoleForm(bound(request), by=desk.user, initial=initial), act)


class NameForm(forms.Form):
    """A person's name."""

    name = forms.CharField(max_length=120, required=False)


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def rename(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Give a person another name."""
    user = get_object_or_404(User, pk=pk)

    def act(asked: dict[str, Any]) -> str:
        roles.rename_person(user=user, by=desk.user, **asked)
        return "The name is saved."

    ask = _ask(user, f"Name of {user.email}", "Save")
    return answered(request, desk, ask, NameForm(bound(request), initial={"name": user.name}), act)


class ResetForm(ReasonForm, TypedForm):
    """Why, and the address."""


class AddressForm(forms.Form):
    """Another address."""

    email = forms.EmailField(label="New address")


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def address(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Have a mail ask the new address to confirm: for superusers."""
    user = get_object_or_404(User, pk=pk)

    def act(asked: dict[str, Any]) -> str:
        _require_superuser(desk)
        people.ask_for_address(user=user, **asked)
        if not user.address_ask:
            return f"It stays {user.email}, and what was asked for before is taken back."
        return f"A mail to {asked['email'].lower()} asks to confirm it. Until then it stays {user.email}."

    follows = ["A mail goes to the new address; it counts once its link was opened, within three days."]
    ask = _ask(user, f"Change the address of {user.email}", "Send the mail", follows=follows)
    return answered(request, desk, ask, AddressForm(bound(request)), act)


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def sign_in_link(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Show a link that signs the person in once, within a quarter of an hour: for superusers."""
    user = get_object_or_404(User, pk=pk)

    def act(_: dict[str, Any]) -> HttpResponse:
        _require_superuser(desk)
        minted = links.mint_link(user=user)
        messages.success(request, to_copy(f"For {user.email}, once, within 15 minutes:", minted))
        return redirect(ask.back)

    rights = ", with the rights of an operator" if user.is_staff else ""
    follows = [
        f"Whoever opens the link within 15 minutes is signed in as {user.email}, once{rights}.",
        "It is shown to you alone; give it to nobody else. Making it stands in the audit trail.",
    ]
    ask = _ask(user, f"Sign-in link for {user.email}", "Make a link", follows=follows)
    return answered(request, desk, ask, forms.Form(bound(request)), act)


def _require_superuser(desk: Desk) -> None:
    if not desk.user.is_superuser:
        raise RoleError("", "Only superusers may act as another person.")


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def reset_factors(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Remove a person's second factors, who has lost them: for superusers."""
    user = get_object_or_404(User, pk=pk)

    def act(asked: dict[str, Any]) -> str:
        with because(asked["reason"]):
            gone = roles.reset_second_factors(user=user, by=desk.user)
        kinds = dict.fromkeys(_FACTORS.get(one, one) for one in gone)
        return f"{user.email} signs in without a second factor now; removed: {', '.join(kinds)}."

    follows = [
        "From then on the password alone lets them in, until they set up another on their account page.",
        "Be sure who asks for it: a thief of the password would ask for just this. They are told by mail.",
    ]
    ask = _ask(user, f"Reset the second factor of {user.email}", "Reset", follows=follows, is_danger=True)
    return answered(request, desk, ask, ResetForm(bound(request), expected=user.email), act)


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def deactivate(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Let a person in no more."""
    user = get_object_or_404(User, pk=pk)

    def act(_: dict[str, Any]) -> str:
        roles.set_active(user=user, by=desk.user, is_active=False)
        return f"{user.email} is deactivated: their sessions end with the next request."

    follows = [
        "Their sessions end with the next request, and they can’t sign in.",
        "Keys that they made work on: they are the tenants’. Memberships stay: “Activate” lets them go on as before.",
    ]
    ask = _ask(user, f"Deactivate {user.email}", "Deactivate", follows=follows, is_danger=True)
    return answered(request, desk, ask, TypedForm(bound(request), expected=user.email), act)


@require_http_methods(METHODS)
@operator_page("gateway.change_user")
def activate(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Let a deactivated person in again."""
    user = get_object_or_404(User, pk=pk)

    def act(_: dict[str, Any]) -> str:
        roles.set_active(user=user, by=desk.user, is_active=True)
        return f"{user.email} can sign in again."

    ask = _ask(user, f"Activate {user.email}", "Activate", follows=["They can sign in again, with what they had."])
    return answered(request, desk, ask, forms.Form(bound(request)), act)


@require_http_methods(METHODS)
@operator_page("gateway.delete_user")
def erase(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponseBase:
    """Say what goes and what stays; once the address is typed, erase the person for ever."""
    user = get_object_or_404(User, pk=pk)
    doomed = erasure.persons_end(user.email)

    def act(_: dict[str, Any]) -> HttpResponse:
        if doomed.obstacle:
            raise ServiceError("", f"{doomed.obstacle}.")
        erasure.end_person(user)
        erasure.wait_for_end(user, WAIT_SECONDS)
        with without_limits():
            erasure.erase_person(user.email)
        messages.success(request, "The person is erased.")
        return redirect(ask.back)

    follows = ["This can’t be undone. Backups keep what they hold until they are deleted."]
    if doomed.obstacle:
        follows.insert(0, f"Not yet: {doomed.obstacle}.")
    lists = [
        ("What goes", doomed.goes),
        (
            "What stays",
            ["usage and transfers, without the name", "what their keys did for a tenant, which is the tenant’s"],
        ),
    ]
    ask = _ask(user, f"Erase {user.email}", "Erase for ever", follows=follows, lists=lists, is_danger=True)
    return answered(request, desk, ask, TypedForm(bound(request), expected=user.email), act)
