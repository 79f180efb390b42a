"""Runs that rate the requests of a time anew, and what came of them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from billing.models.cards import RateCardVersion


class Rerating(models.Model):
    """The requests of a time, rated anew a chunk at a time by periodic work: for real where it is a `commit`, else a
    what-if, which changes nothing. One that `follows` is a shadow: it goes on beside the real prices until a version of
    `card` that was published since is in force.

    Each request is priced by `version`; by `prices`, which are of no version (what-if only); by the version of its
    model's card among `cards` that was in force when it began; or, with none of these, by its own version. Where the
    multiplier was `multiplier_was` it is `multiplier_bp` then. No tenants or models: those of all.

    `last` is the last request that was looked at. `before` and `after` are the charges of those that count, in µcr;
    `changed` counts those whose price is another, `left` the estimates that may still be corrected.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    since = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)
    tenants = models.JSONField(default=list, blank=True)
    model_names = models.JSONField(default=list, blank=True)
    card = models.CharField(max_length=100, blank=True)
    version = models.ForeignKey(RateCardVersion, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    prices = models.JSONField(null=True, blank=True)
    cards = models.JSONField(default=dict, blank=True)
    multiplier_was = models.IntegerField(null=True, blank=True)
    multiplier_bp = models.IntegerField(null=True, blank=True)
    commit = models.BooleanField(default=False)
    follows = models.BooleanField(default=False)
    what_if = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    total = models.PositiveBigIntegerField(default=0)
    looked = models.PositiveBigIntegerField(default=0)
    counted = models.PositiveBigIntegerField(default=0)
    changed = models.PositiveBigIntegerField(default=0)
    left = models.PositiveBigIntegerField(default=0)
    before = models.BigIntegerField(default=0)
    after = models.BigIntegerField(default=0)
    last = models.UUIDField(null=True, blank=True)
    asked_by = models.CharField(max_length=120, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)
    is_stopped = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["commit"], condition=Q(commit=True, ended_at=None), name="rerating_one_for_real_at_a_time"
            ),
            models.CheckConstraint(condition=Q(commit=False) | Q(follows=False), name="rerating_shadow_is_what_if"),
            models.CheckConstraint(condition=Q(commit=False) | Q(prices=None), name="rerating_by_published_prices"),
        ]
        indexes = [models.Index(fields=["created_at"], name="rerating_newest")]

    def __str__(self) -> str:
        kind = "re-rating" if self.commit else "shadow" if self.follows else "what-if"
        return f"{kind} from {self.since:%Y-%m-%d %H:%M}"

    @property
    def difference(self) -> int:
        """By how much more was charged, or would have been, in µcr."""
        return self.after - self.before


class ReratingSum(models.Model):
    """What a run came to for one tenant and model: of each class its tokens and its part of the prices, and under the
    class "" the requests with their charges, what is refunded left out. Amounts are µcr.
    """

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Rerating, on_delete=models.CASCADE, related_name="sums")
    tenant = models.UUIDField()
    model = models.CharField(max_length=120)
    usage_class = models.CharField(max_length=20, blank=True)
    requests = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    before = models.BigIntegerField(default=0)
    after = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "tenant", "model", "usage_class"], name="rerating_sum_once"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.model} {self.usage_class}"
