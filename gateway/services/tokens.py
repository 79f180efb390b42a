"""Single-use secrets that travel in links: only a digest is stored."""

from __future__ import annotations

import secrets

from django.utils.crypto import salted_hmac


def new_token() -> str:
    """Return 256 random bits for a link."""
    return secrets.token_urlsafe(32)


def token_digest(token: str) -> str:
    """Return what is stored of a link's token."""
    return salted_hmac("gateway.services.tokens", token, algorithm="sha256").hexdigest()
