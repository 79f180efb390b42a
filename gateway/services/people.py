"""Users' email addresses: each belongs to one user and was proved by mail or vouched for by an operator."""

from __future__ import annotations

from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.forms import ValidationError

from gateway.errors.service import ServiceError
from gateway.models import User

TAKEN = "Another user has this address."


def change_address(*, user: User, email: str) -> None:
    """Give `user` another address, for which the caller vouches; the old one, and links sent to it, become invalid.

    Raises ServiceError, with nothing changed, when it isn't an address or is another user's.
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
    except IntegrityError:  # another user took it meanwhile
        user.email = before
        raise ServiceError("email", TAKEN) from None
