"""The people of a tenant: who is in it as what, invitations, other roles, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.errors import ServiceError
from control.console.tenancy import Place, tenant_page
from control.screens.figures import moment
from control.screens.tables import Button, Cell, Column, Row, State, Table
from control.throttles import check_invitations
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership
from tenancy.services import members
from tenancy.services.access import CAPABILITIES
from tenancy.services.members import EndedKey

PAGE = 50
MOST_NAMED = 20
ABILITIES = {
    "read": "See usage, requests, keys, models and people",
    "chat": "Chat with the models",
    "batches": "See what stands in batches, and cancel them",
    "keys": "Make, change and revoke keys",
    "wallet": "See credit, grants and the ledger",
    "projects": "Make, rename and archive projects",
    "members": "Invite, change and remove people",
    "settings": "Change what is stored and for how long",
    "audit": "Read the audit trail",
    "admin_keys": "Make admin keys",
    "export": "Download everything that the tenant has",
}
ROLES = {
    "owner": "Everything, other owners and admin keys too.",
    "admin": "Everything but owners, admin keys and the whole export.",
    "member": "Chats, and makes keys of their own.",
    "billing": "Sees usage and credit; asks no model.",
}


def roles_table(own: str) -> Table:
    """Return who may do what; `own` is the reader's role."""
    roles = list(ROLES)
    heads = [Column(f"{role.capitalize()} (you)" if role == own else role.capitalize(), "state") for role in roles]
    rows = [Row([words, *(_allowed(capability, role) for role in roles)]) for capability, words in ABILITIES.items()]
    return Table("Who may do what", [Column("What", "wraps"), *heads], rows)


def _allowed(capability: str, role: str) -> State | str:
    if role not in CAPABILITIES[capability]:
        return "–"
    return State("their own", "good") if (capability, role) == ("keys", "member") else State("yes", "good")


@require_safe
@tenant_page
def people(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the members, and to who invites the open invitations; `after` is where the page before ended."""
    text, after = (request.GET.get(name, "").replace("\0", "")[:254] for name in ("q", "after"))
    context = place.context(page="people", q=text, members=_members(place, text, after))
    if place.access.may("members"):
        context |= {"invitations": _invitations(request, place), "roles_to_give": _roles_to_give(place)}
    context["roles"] = roles_table(place.access.role)
    return render(request, "console/people.html", context)


def _members(place: Place, text: str, after: str) -> Table:
    found = Membership.objects.of(place.tenant).filter(is_active=True, user__email__gt=after).select_related("user")
    if text:
        found = found.filter(Q(user__email__icontains=text) | Q(user__name__icontains=text))
    rows = list(found.order_by("user__email")[: PAGE + 1])
    shown, path = rows[:PAGE], reverse("console-people")
    asked = {**place.name, **({"q": text} if text else {})}
    older = f"{path}?{urlencode({**asked, 'after': shown[-1].user.email})}" if rows[PAGE:] else ""
    newer = f"{path}?{urlencode(asked)}" if after else ""
    columns = [Column("Person", "name"), Column("Role", "state"), Column("Since", "day")]
    columns.append(Column("Change", "buttons", is_hidden=True))
    table = [Row([_person(place, one), State(one.role), one.created_at, _buttons(place, one)]) for one in shown]
    return Table("Members", columns, table, "Nobody matches.", newer=newer, older=older, id="members")


def _person(place: Place, membership: Membership) -> Cell:
    user = membership.user
    you = " (you)" if user == place.access.user else ""
    address = reverse("console-member", args=[membership.id]) + place.query
    may_change = place.access.may_give_role(membership.role)
    return Cell(f"{user.email}{you}", address if may_change else "", user.name)


def _buttons(place: Place, membership: Membership) -> list[Button]:
    about = membership.user.email
    if membership.user == place.access.user:
        return [Button("Leave", reverse("console-leave") + place.query, tone="danger")]
    if not place.access.may_give_role(membership.role):
        return []
    address = reverse("console-member", args=[membership.id]) + place.query
    return [
        Button("Change role", address, f"of {about}"),
        Button("Remove", reverse("console-member-remove", args=[membership.id]) + place.query, about, tone="danger"),
    ]


def _invitations(request: HttpRequest, place: Place) -> Table:
    now = timezone.now()
    found = Invitation.objects.of(place.tenant).filter(accepted_at=None).select_related("invited_by").order_by("-id")
    columns = [Column("Address", "name"), Column("Role", "state"), Column("Expires", "text")]
    columns += [Column("State", "state"), Column("Resend or withdraw", "buttons", is_hidden=True)]
    rows = []
    for one in found[:PAGE]:
        is_over = one.expires_at <= now
        buttons = []
        if place.access.may_give_role(one.role):
            buttons = [
                Button("Resend", _address(place, "console-invitation-resend", one.id), one.email, post=True),
                Button(
                    "Withdraw", _address(place, "console-invitation-withdraw", one.id), one.email, "danger", post=True
                ),
            ]
        by = f"by {one.invited_by.email}" if one.invited_by else "by an operator"
        state = State("expired", "bad") if is_over else State("sent")
        rows.append(Row([Cell(one.email, detail=by), State(one.role), moment(one.expires_at), state, buttons], is_over))
    return Table("Open invitations", columns, rows, "Nobody is invited now.", id="invitations", csrf=get_token(request))


def _address(place: Place, view: str, pk: UUID) -> str:
    return reverse(view, args=[pk]) + place.query


def _roles_to_give(place: Place) -> list[tuple[str, str]]:
    return [(role, words) for role, words in ROLES.items() if place.access.may_give_role(role)]


def _back(place: Place) -> HttpResponse:
    return redirect(reverse("console-people") + place.query)


def _only_for_admins(place: Place) -> None:
    if not place.access.may("members"):
        raise Http404


def _check_role(place: Place, role: str) -> None:
    if role in Membership.Role.values and not place.access.may_give_role(role):
        raise ServiceError("role", "Only owners decide about owners.")


def _invite(request: HttpRequest, place: Place, email: str, role: str) -> HttpResponse:
    """Send the invitation, and go back to the people with what became of it."""
    try:
        _check_role(place, role)
        check_invitations(place.access)
        invitation, _ = members.invite_by_mail(tenant=place.tenant, email=email, role=role, by=place.access.user)
    except ServiceError as refused:
        messages.error(request, refused.message)
    else:
        messages.success(request, f"{invitation.email} is invited as {invitation.role}: the mail is on its way.")
    return _back(place)


@require_POST
@tenant_page
def invite(request: HttpRequest, place: Place) -> HttpResponse:
    """Invite an address; an open invitation to the same one is replaced."""
    _only_for_admins(place)
    return _invite(request, place, request.POST.get("email", ""), request.POST.get("role", ""))


@require_POST
@tenant_page
def resend(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Send an open invitation again, with another link and for another 14 days."""
    invitation = _own_invitation(place, pk)
    return _invite(request, place, invitation.email, invitation.role)


@require_POST
@tenant_page
def withdraw(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Take an open invitation back: its link works no more."""
    invitation = _own_invitation(place, pk)
    try:
        members.withdraw_invitation(tenant=place.tenant, invitation=invitation)
    except ServiceError as refused:  # it was taken up meanwhile
        messages.error(request, refused.message)
    else:
        messages.success(request, f"The invitation of {invitation.email} is withdrawn.")
    return _back(place)


def _own_invitation(place: Place, pk: UUID) -> Invitation:
    _only_for_admins(place)
    found: Invitation = get_object_or_404(Invitation.objects.of(place.tenant).filter(accepted_at=None), pk=pk)
    if not place.access.may_give_role(found.role):
        raise Http404
    return found


def _own_member(place: Place, pk: UUID) -> Membership:
    """Return a member about whom the reader decides; 404 otherwise."""
    mine = Membership.objects.of(place.tenant).filter(is_active=True).select_related("user")
    found: Membership = get_object_or_404(mine, pk=pk)
    if not place.access.may_give_role(found.role):
        raise Http404
    return found


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def member(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Show a member, and give them another role."""
    membership = _own_member(place, pk)
    error = ""
    if request.method == "POST":
        role = request.POST.get("role", "")
        try:
            _check_role(place, role)
            ended = members.change_role(tenant=place.tenant, membership=membership, role=role)
        except ServiceError as refused:
            error = refused.message
        else:
            messages.success(request, f"{membership.user.email} is {role} now.{_ended(ended)}")
            return _back(place)
    context = place.context(
        page="people", member=membership, error=error, roles=_roles_to_give(place), keys=_keys_of(place, membership)
    )
    return render(request, "console/member.html", context, status=400 if error else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def remove(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Ask for the member's address; once it is typed, remove the member with all that they made."""
    membership = _own_member(place, pk)
    email, error = membership.user.email, ""
    if request.method == "POST":
        if request.POST.get("email", "").strip().lower() != email:
            error = f"That is not the member’s address: type “{email}”."
        else:
            error = _removed(request, place, membership, f"{email} is no member any more.")
        if not error:
            return _back(place)
    context = place.context(page="people", member=membership, error=error, keys=_keys_of(place, membership))
    return render(request, "console/member_remove.html", context, status=400 if error else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def leave(request: HttpRequest, place: Place) -> HttpResponse:
    """Ask whether to leave the tenant; then end the reader's own membership."""
    mine = Membership.objects.of(place.tenant).filter(is_active=True).select_related("user")
    membership: Membership = get_object_or_404(mine, user=place.access.user)
    error = ""
    if request.method == "POST":
        error = _removed(request, place, membership, f"You left {place.tenant.name}.")
        if not error:
            return redirect("/")
    context = place.context(page="people", member=membership, error=error, keys=_keys_of(place, membership))
    return render(request, "console/leave.html", context, status=400 if error else 200)


def _removed(request: HttpRequest, place: Place, membership: Membership, told: str) -> str:
    """Remove the member and say so; return why that can't be, else nothing."""
    try:
        ended = members.remove_member(tenant=place.tenant, membership=membership)
    except ServiceError as refused:
        return refused.message
    messages.success(request, told + _ended(ended))
    return ""


def _ended(keys: Sequence[EndedKey]) -> str:
    named = ", ".join(map(str, keys[:MOST_NAMED]))
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    return f" {named}{more}." if named else ""


def _keys_of(place: Place, membership: Membership) -> list[str]:
    """Return the names of the keys that end when the member goes."""
    made = {"created_by": membership.user, "revoked_at": None}
    keys = APIKey.objects.of(place.tenant).filter(**made).order_by("name")[:MOST_NAMED]
    admin = AdminAPIKey.objects.of(place.tenant).filter(**made).order_by("name")[:MOST_NAMED]
    return [*(f"{key.name} …{key.last_four}" for key in keys), *(f"{key.name} (admin key)" for key in admin)]
