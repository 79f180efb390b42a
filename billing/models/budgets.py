"""The spending limits of an API key, and what it has spent."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from billing.models.ledger import Wallet


class Budget(models.Model):
    """An API key's spend limits (µcr; None: no limit) for a day, a month (both of UTC) and in total, with what counts.

    `held` is the sum of its open holds; `day_spent`, `month_spent` and `total_spent` are what was charged in `day`, in
    the month that begins with `month`, and in all. Only requests whose hold was made under the budget count, also
    while no limit is set. The row changes only under its wallet's lock. A hold never takes more than is left of each
    limit.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="budgets", db_constraint=False)
    api_key = models.UUIDField(unique=True)
    day_limit = models.BigIntegerField(null=True, blank=True)
    month_limit = models.BigIntegerField(null=True, blank=True)
    total_limit = models.BigIntegerField(null=True, blank=True)
    held = models.BigIntegerField(default=0)
    day = models.DateField()
    day_spent = models.BigIntegerField(default=0)
    month = models.DateField()
    month_spent = models.BigIntegerField(default=0)
    total_spent = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(held__gte=0), name="budget_held_not_negative"),
            models.CheckConstraint(
                condition=(Q(day_limit=None) | Q(day_limit__gte=0))
                & (Q(month_limit=None) | Q(month_limit__gte=0))
                & (Q(total_limit=None) | Q(total_limit__gte=0)),
                name="budget_limits_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"budget of key {self.api_key}"
