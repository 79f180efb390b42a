"""Ways to an account: an invitation, or sign-up where the operator names a plan for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.models import EmailAddress
from allauth.account.signals import email_confirmed
from allauth.core import context as current
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import slugify

from base.ids import uuid7
from billing.models import Plan
from gateway.http.bounds import client_network
from tenancy.models import Membership, User
from tenancy.services import members, tenants
from tenancy.services.mail import queue_mail


@dataclass(frozen=True, slots=True)
class Site:
    """The name and address of this installation in mails."""

    domain: str
    name: str


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc] # allauth isn't followed
    """Keeps sign-up closed unless SLUICE_SIGNUP_PLAN is set."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return whether people may sign up."""
        return is_open()

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """Return where somebody lands who has signed in: operators at what runs now, others on their tenant's page."""
        return reverse("operate-now" if getattr(request.user, "is_staff", False) else "console-home")

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the client's address, without the zone that one of a local network may have."""
        address: str = super().get_client_ip(request)
        return address.partition("%")[0]

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        """Count wrong passwords by account and client address, so that nobody can lock an account for other addresses.

        Unlike allauth's own key, it leaves out the request's host, which the client chooses.
        """
        login = str(credentials.get("email", credentials.get("username", ""))).lower()
        return f"{login}:{client_network(self.get_client_ip(request))}"

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Queue a mail whose addresses begin with SLUICE_BASE_URL.

        allauth takes the host from the request: whoever asks for a mail to somebody else could choose where its link
        leads.
        """
        asked, own = current.request.build_absolute_uri("/"), f"{settings.SLUICE_BASE_URL}/"
        ours = {
            name: own + value.removeprefix(asked)
            for name, value in context.items()
            if isinstance(value, str) and value.startswith(asked)
        }
        site = Site(urlsplit(own).netloc, "Sluice")
        given = {"request": current.request, "email": email, **context, **ours, "current_site": site}
        mail = self.render_mail(template_prefix, email, given)
        queue_mail(to=email, subject=mail.subject, text=mail.body)

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Save the new user, who has no tenant yet: `give_tenant` makes it once the address is proved."""
        user.email = form.cleaned_data["email"].lower()
        saved: User = super().save_user(request, user, form, commit=commit)
        return saved


def is_open() -> bool:
    """Return whether people may sign up by themselves: while the plan that they would get is offered."""
    return Plan.objects.filter(slug=settings.SLUICE_SIGNUP_PLAN, is_offered=True).exists()


def connect() -> None:
    """Connect the signal's receiver; call once per process."""
    email_confirmed.connect(give_tenant, dispatch_uid="accounts.tenant")


@transaction.atomic
def give_tenant(email_address: EmailAddress, **_: Any) -> None:
    """Give a user who has signed up and proved their address the tenant that they own, with the plan's credit."""
    user = User.objects.select_for_update().get(pk=email_address.user_id)
    if user.is_staff or Membership.objects.unscoped().filter(user=user).exists() or not is_open():
        return
    local = user.email.partition("@")[0]
    made = tenants.create_tenant(
        name=local,
        slug=f"{slugify(local)[:40]}-{uuid7().hex[-8:]}",
        owner_email=user.email,
        plan=settings.SLUICE_SIGNUP_PLAN,
    )
    members.take_up(invitation=made.invitation, user=user)
