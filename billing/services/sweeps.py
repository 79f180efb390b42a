"""What time alone changes, as sweeps over rows: safe to repeat, to overlap and to be cut off between two of them."""

from __future__ import annotations

import time
from datetime import datetime

from django.db import connection
from django.db.models import Q

from billing.models import Subscription, Wallet
from billing.services import credits, plans

_REST_S = 0.002


def grant_monthly(now: datetime, limit: int = 20) -> int:
    """Grant the current month to at most `limit` subscriptions that haven't had it, and return how many were done."""
    due = Subscription.objects.filter(
        Q(granted_until=None) | Q(granted_until__lte=now), state=Subscription.State.ACTIVE
    ).order_by("granted_until")
    done = 0
    for subscription_id in list(due.values_list("pk", flat=True)[:limit]):
        plans.grant_month(subscription_id, now)
        done += 1
        rest()
    return done


def expire_grants(now: datetime, limit: int = 20) -> int:
    """Post the expired credit of at most `limit` wallets to breakage, and return the µcr that expired.

    Wallets whose open holds keep expired credit are looked at each time, after the others.
    """
    due = Wallet.objects.filter(next_grant_change_at__lte=now).order_by("-next_grant_change_at")
    lost = 0
    for wallet_id in list(due.values_list("pk", flat=True)[:limit]):
        lost += credits.roll(wallet_id, now)
        rest()
    return lost


def rest() -> None:
    """Leave SQLite's only lock free for a moment, or other processes starve; nothing to do on PostgreSQL."""
    if connection.vendor == "sqlite":
        time.sleep(_REST_S)
