"""A person's own page, and pages of sign-in links, invitations and confirmed addresses.

A link's GET shows a button, only POST does something. Mail scanners and link previews open addresses by GET; a
single-use link must survive them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allauth.account.utils import perform_login
from allauth.core.ratelimit import consume_or_429
from allauth.mfa.models import Authenticator
from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.signals import user_login_failed
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods

from base.errors import ServiceError
from control.accounts.sessions import sessions_of
from control.screens.tables import Button, Cell, Column, Row, Table
from gateway.http.request import metrics_of
from tenancy.models import User
from tenancy.services import links, members, people
from tenancy.services.access import accesses_of_user


def connect() -> None:
    """Connect the signal's receiver; call once per process."""
    user_login_failed.connect(_failed, dispatch_uid="accounts.sign_in_failed")


def _failed(request: HttpRequest | None = None, **_: Any) -> None:
    if (metrics := metrics_of(getattr(request, "scope", {}))) is not None:
        metrics.authentication_failed("password")


@never_cache
@sensitive_variables("token")
@require_http_methods(["GET", "HEAD", "POST"])
def open_link(request: HttpRequest, token: str) -> HttpResponse:
    """Sign the link's user in, once; a second factor is still asked for."""
    if refused := _too_often(request, "open_link"):
        return refused
    if request.method == "POST":
        try:
            user = links.use_link(token=token)
        except ServiceError as error:
            return _refused(request, error)
        return _signed_in(request, user)
    link = links.find_link(token=token)
    if link is None:
        return _refused(request, ServiceError("token", "This link was used already or is too old. Ask for a new one."))
    return render(request, "gateway/link.html", {"title": f"Sign in as {link.user.email}", "action": "Sign in"})


@never_cache
@sensitive_post_parameters()
@sensitive_variables("token", "form")
@require_http_methods(["GET", "HEAD", "POST"])
def open_invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Join the invitation's tenant: as a new user, who chooses a password, or as the invited user, who must be signed
    in.
    """
    if refused := _too_often(request, "open_invitation"):
        return refused
    present = request.user if isinstance(request.user, User) else None
    invitation = members.find_invitation(token=token)
    if invitation is None:
        message = "This invitation was used already or is too old. Ask for a new one."
        return _refused(request, ServiceError("token", message))
    if present is None and members.has_user(invitation=invitation):
        return redirect_to_login(request.path)
    form = None
    if present is None:
        form = SetPasswordForm(User(email=invitation.email), request.POST if request.method == "POST" else None)
        form.label_suffix = ""
    if request.method == "POST" and (form is None or form.is_valid()):
        password = "" if form is None else form.cleaned_data["new_password1"]
        try:
            membership = members.accept_invitation(token=token, user=present, password=password)
        except ServiceError as error:
            return _refused(request, error)
        messages.success(request, f"You are a member of {membership.tenant.name} now.")
        return redirect("/") if present else _signed_in(request, membership.user)
    context = {"invitation": invitation, "form": form}
    status = 400 if form is not None and form.errors else 200
    return render(request, "gateway/invitation.html", context, status=status)


@never_cache
@sensitive_variables("token")
@require_http_methods(["GET", "HEAD", "POST"])
def open_address(request: HttpRequest, token: str) -> HttpResponse:
    """Make the address that the mail went to its user's; nobody is signed in by that."""
    if refused := _too_often(request, "open_address"):
        return refused
    try:
        if request.method == "POST":
            user = people.change_address(token=token)
            return render(request, "gateway/link.html", {"title": f"{user.email} is your address now"})
        email = people.asked_address(token=token)
    except ServiceError as error:
        return _refused(request, error)
    return render(request, "gateway/link.html", {"title": f"Make {email} your address", "action": "Confirm"})


@dataclass(frozen=True, slots=True)
class Factors:
    """A person's second factors."""

    app: Authenticator | None
    keys: Sequence[Authenticator]
    codes: Authenticator | None

    @classmethod
    def of(cls, user: User) -> Factors:
        """Return the person's."""
        found = list(Authenticator.objects.filter(user=user).order_by("created_at"))
        kinds = Authenticator.Type
        first = {kind: next((one for one in found if one.type == kind), None) for kind in kinds}
        keys = [one for one in found if one.type == kinds.WEBAUTHN]
        return cls(first[kinds.TOTP], keys, first[kinds.RECOVERY_CODES])

    @property
    def is_on(self) -> bool:
        """Whether signing in asks for one."""
        return self.app is not None or bool(self.keys)

    @property
    def codes_left(self) -> int:
        """The number of unused recovery codes."""
        return 0 if self.codes is None else len(self.codes.wrap().get_unused_codes())

    def keys_table(self) -> Table:
        """Return the passkeys and security keys."""
        columns = [Column("Key", "name"), Column("Last used", "time")]
        columns.append(Column("Actions", "buttons", is_hidden=True))
        rows = []
        for one in self.keys:
            name = one.wrap().name
            acts = [
                Button("Rename", reverse("mfa_edit_webauthn", args=[one.pk]), name),
                Button("Remove", reverse("mfa_remove_webauthn", args=[one.pk]), name, tone="danger"),
            ]
            kind = "signs in alone" if one.wrap().is_passwordless else "beside the password"
            key = Cell(name, detail=f"{kind}, added {one.created_at:%-d %b %Y}")
            rows.append(Row([key, one.last_used_at or SafeString("never"), acts]))
        return Table("Passkeys and security keys", columns, rows, id="passkeys")


@login_required
def factors(request: HttpRequest) -> HttpResponse:
    """Lead to the second factors on the person's own page."""
    return redirect(reverse("account_profile") + "#factors")


class NameForm(forms.Form):
    """A person's name."""

    name = forms.CharField(max_length=120, required=False, label="Name", help_text="As other members see you.")


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def profile(request: HttpRequest) -> HttpResponse:
    """Show the person's account, and change the name."""
    user = request.user
    assert isinstance(user, User)
    form = NameForm(request.POST if request.method == "POST" else None, initial={"name": user.name}, label_suffix="")
    if request.method == "POST" and form.is_valid():
        people.set_name(user=user, name=form.cleaned_data["name"])
        messages.success(request, "Your name is saved.")
        return redirect("account_profile")
    context = {
        "form": form,
        "accesses": accesses_of_user(user=user),
        "factors": Factors.of(user),
        "sessions": sessions_of(request),
    }
    return render(request, "account/profile.html", context, status=400 if form.errors else 200)


def _too_often(request: HttpRequest, action: str) -> HttpResponse | None:
    refused: HttpResponse | None = consume_or_429(request, action=action, limit_get=True)
    return refused


def _signed_in(request: HttpRequest, user: User) -> HttpResponse:
    """Sign in through allauth, whose stages ask for a second factor where the user has one."""
    response: HttpResponse = perform_login(request, user, email_verification="none")
    return response


def _refused(request: HttpRequest, error: ServiceError) -> HttpResponse:
    return render(request, "gateway/link.html", {"title": "This link can't be used", "text": error.message}, status=410)
