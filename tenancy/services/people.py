"""Users' names and email addresses. An address belongs to one user, who has proved it by a mail's link; or an operator
vouched for it when they made the user.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core import signing
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.forms import ValidationError
from django.urls import reverse
from django.utils.crypto import constant_time_compare

from base.errors import ServiceError
from tenancy.models import User
from tenancy.services.links import stamps
from tenancy.services.mail import queue_mail
from tenancy.services.tokens import new_token

LIFETIME = timedelta(days=3)
TAKEN = "Another user has this address."
_SALT = "gateway.services.people"
_OLD = ServiceError("token", "This link was used already or is too old. Ask for a new one.")


@transaction.atomic
def set_name(*, user: User, name: str) -> None:
    """Give the user a name; an empty one is none."""
    user.name = name.strip()[:120]
    user.save(update_fields=["name"])


@transaction.atomic
def ask_for_address(*, user: User, email: str) -> None:
    """Queue a mail to `email` whose link makes it the user's address, and end the links that were asked for before.

    The user's present address only ends them: nothing is sent. Raises ServiceError when it isn't an address or is
    another user's.
    """
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise ServiceError("email", "This is not an email address.") from None
    _refuse_taken(user, email)
    user.address_ask = "" if email == user.email else new_token()
    User.objects.filter(pk=user.pk).update(address_ask=user.address_ask)
    if not user.address_ask:
        return
    said = {"user": str(user.pk), "email": email, "ask": user.address_ask, "stamp": stamps(user)[0]}
    token = signing.dumps(said, salt=_SALT)
    address = settings.SLUICE_BASE_URL.rstrip("/") + reverse("address-open", args=[token])
    text = f"An account on Sluice is to have this address. If it is yours, open within three days:\n\n{address}\n"
    queue_mail(to=email, subject="Confirm your address", text=text)


def asked_address(*, token: str) -> str:
    """Return the address that the mail with `token` went to; raise ServiceError where its link is void."""
    return str(_read(token)[1])


@transaction.atomic
def change_address(*, token: str) -> User:
    """Give the user of `token` the address to which it was sent; the old one, and links sent to it, become void.

    Raises ServiceError, with nothing changed, for a link that is void, as after a later ask or any other change of the
    user's address or password, and where the address is another user's by now.
    """
    user, email = _read(token, lock=True)
    _refuse_taken(user, email)
    user.email, user.address_ask = email, ""
    try:
        with transaction.atomic():
            user.save(update_fields=["email", "address_ask"])
            User.objects.confirm_address(user)
    except IntegrityError:  # another user took it meanwhile
        raise ServiceError("email", TAKEN) from None
    return user


def _read(token: str, *, lock: bool = False) -> tuple[User, str]:
    try:
        said: dict[str, Any] = signing.loads(token, salt=_SALT, max_age=LIFETIME)
    except signing.BadSignature:
        raise _OLD from None
    users = User.objects.select_for_update() if lock else User.objects.all()
    user = users.filter(pk=said["user"], address_ask=said.get("ask"), is_active=True).first()
    if user is None or not any(constant_time_compare(said["stamp"], known) for known in stamps(user)):
        raise _OLD
    return user, said["email"]


def _refuse_taken(user: User, email: str) -> None:
    if User.objects.filter(email=email).exclude(pk=user.pk).exists():
        raise ServiceError("email", TAKEN)
