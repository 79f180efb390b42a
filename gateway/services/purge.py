"""Deletes expired sessions, sign-in links and invitations, and old refusal counts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import QuerySet

from gateway.models import Invitation, RefusalCount, SignInLink

KEPT = timedelta(days=30)
"""How long operators still see an expired invitation."""


def purge(now: datetime, limit: int = 200) -> int:
    """Delete at most `limit` rows of each kind that are over by `now`, and return how many."""
    kept_refusals = timedelta(days=settings.SLUICE_REFUSAL_DAYS)
    return sum(
        _remove(rows, limit)
        for rows in (
            Session.objects.filter(expire_date__lt=now).order_by("expire_date"),
            SignInLink.objects.filter(expires_at__lt=now).order_by("expires_at"),
            Invitation.objects.unscoped().filter(accepted_at=None, expires_at__lt=now - KEPT).order_by("expires_at"),
            RefusalCount.objects.unscoped().filter(minute__lt=now - kept_refusals).order_by("minute"),
        )
    )


def _remove(rows: QuerySet[Any], limit: int) -> int:
    chosen = list(rows.values_list("pk", flat=True)[:limit])
    if chosen:
        rows.model._base_manager.filter(pk__in=chosen).delete()  # noqa: SLF001 - documented: past the tenants' scope
    return len(chosen)
