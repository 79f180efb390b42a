"""Single-use secrets that travel in links: only a digest is stored."""

from __future__ import annotations

import secrets

from django.conf import settings
from django.utils.crypto import salted_hmac


def new_token(size: int = 32) -> str:
    """Return so many random bytes for a link."""
    return secrets.token_urlsafe(size)


def token_digest(token: str) -> str:
    """Return the stored form of a link's token."""
    return token_digests(token)[0]


def token_digests(token: str) -> list[str]:
    """Return what may be stored of a link's token: the current secret's digest, then those of the replaced ones."""
    secrets_ = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    salt = "gateway.services.tokens"
    return [salted_hmac(salt, token, secret=one, algorithm="sha256").hexdigest() for one in secrets_]
