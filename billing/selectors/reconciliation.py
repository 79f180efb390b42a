"""The findings of the last check of the books."""

from __future__ import annotations

from billing.models import Reconciliation


def last_reconciliation() -> Reconciliation | None:
    """Return the last check that ended, or None if there was none."""
    return Reconciliation.objects.filter(finished_at__isnull=False).order_by("-finished_at").first()


def last_whole() -> Reconciliation | None:
    """Return the last check of all rows that ended, or None if there was none."""
    return Reconciliation.objects.filter(finished_at__isnull=False, is_whole=True).order_by("-finished_at").first()
