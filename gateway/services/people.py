"""Users' addresses: each belongs to one user, and what a user signs in with has been proved or vouched for."""

from __future__ import annotations

from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.forms import ValidationError

from gateway.errors.service import ServiceError
from gateway.models import User

TAKEN = "Another user has this address."


def change_address(*, user: User, email: str) -> None:
    """Give `user` another address, for which the caller vouches; the old one and what was sent to it count no more.

    Raises ServiceError, with nothing changed, where it is none or somebody else's.
    """
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise ServiceError("email", "This is not an email address.") from None
    if User.objects.filter(email=email).exclude(pk=user.pk).exists():
        raise ServiceError("email", TAKEN)
    before, user.email = user.email, email
    try:
        with transaction.atomic():
            user.save(update_fields=["email"])
            User.objects.confirm_address(user)
    except IntegrityError:  # somebody else took it meanwhile
        user.email = before
        raise ServiceError("email", TAKEN) from None
