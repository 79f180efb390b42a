"""What is kept of a client's own identifiers."""

from __future__ import annotations

from uuid import UUID

from django.utils.crypto import salted_hmac


def end_user_digest(tenant: UUID, end_user: str | None) -> str:
    """Return a keyed hash of a tenant's `user` field in 64 hex digits, or "" where there is none."""
    if not end_user:
        return ""
    return salted_hmac("gateway.privacy", f"{tenant}:{end_user}", algorithm="sha256").hexdigest()
