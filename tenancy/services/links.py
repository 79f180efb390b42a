"""Sign-in links: valid once, for 15 minutes, and while their user has the password and address that they were made for.

A link's token ends with a stamp of these two, so that any change of them ends it, whoever makes it in whatever way.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from base.errors import ServiceError
from tenancy.models import SignInLink, User
from tenancy.services.tokens import new_token, token_digest, token_digests

LIFETIME = timedelta(minutes=15)
_STAMP = 16  # characters of a stamp, in hex
_RANDOM = 16  # bytes: nobody guesses 128 bits in 15 minutes, and the address fits a line of a terminal


@transaction.atomic
def mint_link(*, user: User, base_url: str = "") -> str:
    """Return an address that signs `user` in once, within 15 minutes, after a click on its page's button; with their
    next password or address it ends.

    It begins with `base_url`, or with SLUICE_BASE_URL.
    """
    if not user.is_active:
        raise ServiceError("user", "This user is deactivated.")
    token = f"{new_token(_RANDOM)}.{stamps(user)[0]}"
    SignInLink.objects.create(user=user, digest=token_digest(token), expires_at=timezone.now() + LIFETIME)
    return (base_url or settings.SLUICE_BASE_URL).rstrip("/") + reverse("link-open", args=[token])


def find_link(*, token: str) -> SignInLink | None:
    """Return the link of `token` while it can still be used."""
    usable = SignInLink.objects.select_related("user").filter(
        used_at=None, expires_at__gt=timezone.now(), user__is_active=True
    )
    link = usable.filter(digest__in=token_digests(token)).first()
    stamp = token.rpartition(".")[2]
    if link is None or not any(constant_time_compare(stamp, known) for known in stamps(link.user)):
        return None
    return link


def use_link(*, token: str) -> User:
    """Use the link up and return its user; of concurrent calls only one succeeds."""
    link = find_link(token=token)
    now = timezone.now()
    if link is None or not SignInLink.objects.filter(id=link.id, used_at=None, expires_at__gt=now).update(used_at=now):
        raise ServiceError("token", "This link was used already or is too old. Ask for a new one.")
    return link.user


def stamps(user: User) -> list[str]:
    """Return what a link of the user's may carry, the current secret's first: a digest of address and hashed password,
    so that any change of either ends the link.
    """
    return [digest[:_STAMP] for digest in token_digests(f"{user.pk}\0{user.email}\0{user.password}")]
