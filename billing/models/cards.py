"""Rate cards: what a token of each class costs, by version; and what it was measured to cost the operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7
from billing.rating import CardPrices


class RateCard(models.Model):
    """A named list of prices; a public model of the catalogue points at one by `name`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return self.name


class RateCardVersion(models.Model):
    """The prices of a card from `effective_from` on, until the next version's. A trigger refuses changes once it is
    published.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    card = models.ForeignKey(RateCard, on_delete=models.PROTECT, related_name="versions")
    effective_from = models.DateTimeField()
    published_at = models.DateTimeField(null=True, blank=True)
    request_fee = models.BigIntegerField(default=0, help_text="µcr per request that ran.")
    batch_bp = models.PositiveIntegerField(
        db_default=10_000, help_text="What requests of batches cost of the rates, in basis points."
    )
    note = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["card", "effective_from"], name="rate_card_version_once_per_moment"),
            models.CheckConstraint(condition=Q(request_fee__gte=0), name="rate_card_version_fee_not_negative"),
            models.CheckConstraint(condition=Q(batch_bp__lte=10_000), name="rate_card_version_batch_is_part"),
        ]
        ordering = ["card", "-effective_from"]

    def __str__(self) -> str:
        return f"{self.card} from {self.effective_from:%Y-%m-%d %H:%M}"


class Rate(models.Model):
    """µcr per million tokens of one class, for requests whose whole context is at least `tier_min_context` tokens."""

    class UsageClass(models.TextChoices):
        INPUT = "input"
        CACHE_READ = "cache_read"
        CACHE_WRITE_SHORT = "cache_write_short"
        CACHE_WRITE_LONG = "cache_write_long"
        OUTPUT = "output"
        REASONING = "reasoning"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    version = models.ForeignKey(RateCardVersion, on_delete=models.PROTECT, related_name="rates")
    tier_min_context = models.PositiveIntegerField(default=0)
    usage_class = models.CharField(max_length=20, choices=UsageClass)
    rate = models.BigIntegerField(help_text="µcr per 1,000,000 tokens.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["version", "tier_min_context", "usage_class"], name="rate_once_per_tier_and_class"
            ),
            models.CheckConstraint(condition=Q(rate__gte=0), name="rate_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.usage_class} {self.rate}"


def prices_of(versions: Iterable[UUID]) -> dict[UUID, CardPrices]:
    """Return the prices of these versions as plain data, of those that there are."""
    wanted = set(versions)
    rates: dict[UUID, list[tuple[int, str, int]]] = defaultdict(list)
    for rate in Rate.objects.filter(version__in=wanted):
        rates[rate.version_id].append((rate.tier_min_context, rate.usage_class, rate.rate))
    return {
        one.pk: CardPrices.build(one.pk, one.request_fee, rates[one.pk], one.batch_bp)
        for one in RateCardVersion.objects.filter(pk__in=wanted)
    }


class CostSample(models.Model):
    """A calibration of a deployment: the operator's cost of its requests from `created_at` on, until the next one's.

    `seconds` were fitted by term (`billing.costs.TERMS`), `rates` are their µcr at `price`; `residual` is the fit's,
    and `recovery` the fitted part of the time that a held-out mix of requests took. `point` says at which load, by
    which engine and how it was measured, `proposal` is the card that follows. A trigger refuses changes.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    deployment = models.UUIDField()
    name = models.CharField(max_length=80, help_text="The deployment's, then.")
    model = models.CharField(max_length=120)
    card = models.CharField(max_length=100, blank=True, help_text="The price list that it proposes to change.")
    device = models.CharField(max_length=200)
    point = models.JSONField(default=dict)
    seconds = models.JSONField()
    rates = models.JSONField()
    price = models.JSONField()
    proposal = models.JSONField()
    residual = models.FloatField()
    recovery = models.FloatField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(fields=["deployment", "created_at"], name="cost_sample_deployment"),
            models.Index(fields=["card", "created_at"], name="cost_sample_card"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.created_at:%Y-%m-%d %H:%M}"
