"""Budgets: what somebody of a tenant may spend in a day, a week, a month or in all, and what counts in them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from billing.models.ledger import Wallet


def usual_thresholds() -> list[int]:
    """Return the shares of a limit, in percent, that are told when nobody chose others."""
    return [80, 100]


class SpendBudget(models.Model):
    """A limit of µcr for what `scope` and `subject` name, in each `window`. What it counts stays while the limit is
    raised, lowered or removed.

    A hard one refuses what goes beyond it, a soft one only tells. `number` names it in its wallet. Windows begin with
    `anchor` by the clock of `time_zone`: neither these two nor scope and window ever change. A removed budget limits
    nothing and goes on counting, so that one made again for the same applies to everything that was spent. The row
    changes only under its wallet's lock.
    """

    class Scope(models.TextChoices):
        TENANT = "tenant"
        PROJECT = "project"
        KEY = "key"
        MEMBER = "member"
        END_USER = "end_user"
        MODELS = "models"

    class Window(models.TextChoices):
        DAY = "day"
        WEEK = "week"
        MONTH = "month"
        TOTAL = "total"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="spend_budgets", db_constraint=False)
    tenant = models.UUIDField(help_text="Whose wallet it is: gateways hear by it of a change.")
    number = models.IntegerField()
    name = models.CharField(max_length=80, blank=True)
    scope = models.CharField(max_length=10, choices=Scope)
    subject = models.CharField(
        max_length=2000,
        blank=True,
        help_text="Id of the project, key or member, digest of the end user, names of models a line each.",
    )
    window = models.CharField(max_length=10, choices=Window)
    anchor = models.DateTimeField(help_text="Where one of its windows begins.")
    time_zone = models.CharField(max_length=60, default="UTC")
    amount = models.BigIntegerField(null=True, blank=True, help_text="µcr; empty: no limit.")
    is_hard = models.BooleanField(default=True)
    thresholds = models.JSONField(default=usual_thresholds, blank=True, help_text="Percent of the limit that are told.")
    by_operator = models.BooleanField(default=False, help_text="Set by the operator, who is told too.")
    created_at = models.DateTimeField(db_default=Now())
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["wallet", "number"], name="spend_budget_number"),
            models.UniqueConstraint(
                fields=["wallet", "scope", "subject", "window", "anchor", "time_zone", "is_hard", "by_operator"],
                name="spend_budget_once",
            ),
            models.CheckConstraint(condition=Q(amount=None) | Q(amount__gte=0), name="spend_budget_not_negative"),
        ]
        indexes = [models.Index(fields=["scope", "subject"], name="spend_budget_subject")]

    def __str__(self) -> str:
        return self.name or f"budget {self.number} of {self.get_scope_display()}"


class BudgetWindow(models.Model):
    """What counts in one window of a budget: `spent` is what was charged for the requests held in it, with their
    corrections, and `held` the sum of its open holds, in µcr.

    The windows used of late stand in `Wallet.windows`, which says what is so where both have one.
    """

    id = models.BigAutoField(primary_key=True)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False)
    number = models.IntegerField(help_text="Of the budget.")
    start = models.BigIntegerField(help_text="The minute since 1970 with which it begins.")
    spent = models.BigIntegerField()
    held = models.BigIntegerField()
    carried = models.BigIntegerField(db_default=0, help_text="Of `spent`, what the release before this counted.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["wallet", "number", "start"], name="budget_window_once"),
        ]
        indexes = [models.Index(fields=["wallet"], condition=~Q(held=0), name="budget_window_held")]

    def __str__(self) -> str:
        return f"{self.number}.{self.start}"


class Budget(models.Model):
    """A key's limits and counts as the release before this reads and writes them during a rolling upgrade.

    `carried` is how much of `total_spent` its `SpendBudget` rows have taken over (`services.budgets.take_over`).
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
    carried = models.BigIntegerField(null=True)
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
