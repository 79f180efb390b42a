"""Plans: what a tenant may do and gets each month, by version."""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7


class Plan(models.Model):
    """A plan that can be subscribed to; its terms are its versions."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    is_offered = models.BooleanField(default=True)

    def __str__(self) -> str:
        return self.name


class PlanVersion(models.Model):
    """The terms of a plan; a trigger refuses changes: new terms are a new version, to which subscriptions are moved.

    Buckets: `*_limit` units per `*_period_s`, at most `*_burst` at once; credits in µcr; without `token_limit` tokens
    have none. `slice_tokens` is how many output tokens a hold covers ahead. `allowed_models` lists public model names;
    empty allows all. `flex_bp` and `priority_bp` multiply the prices of requests in these service tiers.
    `overdraft_limit` is how far below zero a wallet goes where `overage` doesn't block; what it is below zero at the
    end of a month is an invoice where `overage` says so. What it promises, and what a miss gives back, is in
    `billing.promises`; empty promises nothing.
    """

    class Overage(models.TextChoices):
        BLOCK = "block"
        OVERDRAFT = "overdraft"
        INVOICE = "invoice"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    request_limit = models.PositiveBigIntegerField()
    request_period_s = models.PositiveIntegerField(default=60)
    request_burst = models.PositiveBigIntegerField()
    credit_limit = models.PositiveBigIntegerField(help_text="µcr per period.")
    credit_period_s = models.PositiveIntegerField(default=60)
    credit_burst = models.PositiveBigIntegerField(help_text="µcr at once.")
    token_limit = models.PositiveBigIntegerField(null=True, blank=True, help_text="Tokens per period; empty: any.")
    token_period_s = models.PositiveIntegerField(default=60, db_default=60)
    token_burst = models.PositiveBigIntegerField(null=True, blank=True, help_text="Tokens at once; empty: the limit.")
    concurrency = models.PositiveIntegerField()
    weight = models.PositiveIntegerField(default=1000, help_text="Share of the engine, in thousandths.")
    priority = models.SmallIntegerField(
        default=0, help_text="Waiting requests of a higher priority are served before all of a lower one."
    )
    slice_tokens = models.PositiveIntegerField(default=256)
    resume_s = models.PositiveIntegerField(
        default=60, help_text="Seconds for which an answer that can be resumed goes on without a reader."
    )
    monthly_credits = models.PositiveBigIntegerField(default=0, help_text="µcr granted at the start of each period.")
    rollover = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="µcr of a month's credit that last for one month more; empty: none."
    )
    multiplier_bp = models.PositiveIntegerField(default=10_000, help_text="Price multiplier in basis points.")
    flex_bp = models.PositiveIntegerField(default=10_000, db_default=10_000, help_text="Flex requests' price, in bp.")
    priority_bp = models.PositiveIntegerField(
        default=10_000, db_default=10_000, help_text="Priority requests' price, in bp."
    )
    overage = models.CharField(max_length=10, choices=Overage, default=Overage.BLOCK)
    overdraft_limit = models.PositiveBigIntegerField(default=0)
    allowed_models = models.JSONField(default=list, blank=True)
    promised_ttft_ms = models.PositiveIntegerField(
        null=True, blank=True, help_text="Milliseconds to the first token; empty: not promised."
    )
    promised_ttft_per_1k_ms = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Milliseconds more for each 1,000 tokens of the prompt that aren't cached."
    )
    promised_rate = models.PositiveIntegerField(
        null=True, blank=True, help_text="Output tokens per second; empty: not promised."
    )
    promised_rate_from = models.PositiveIntegerField(
        default=64, db_default=64, help_text="The fewest tokens of an answer whose speed is promised."
    )
    promise_credit_bp = models.PositiveIntegerField(
        default=0,
        db_default=0,
        validators=[MaxValueValidator(10_000)],
        help_text="Share of the charge that a miss gives back, in bp.",
    )
    promise_cap = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="µcr that misses give back in a calendar month (UTC) at most; empty: any."
    )
    adapters = models.PositiveIntegerField(default=0, help_text="Adapters of its own that a tenant may have.")
    default_task = models.CharField(max_length=40, default="chat")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["plan", "number"], name="plan_version_once_per_number"),
            models.CheckConstraint(
                condition=Q(request_limit__gt=0)
                & Q(request_period_s__gt=0)
                & Q(request_burst__gt=0)
                & Q(credit_limit__gt=0)
                & Q(credit_period_s__gt=0)
                & Q(credit_burst__gt=0)
                & Q(concurrency__gt=0)
                & Q(weight__gt=0)
                & Q(slice_tokens__gt=0),
                name="plan_version_limits_positive",
            ),
            models.CheckConstraint(
                condition=(Q(token_limit=None) | Q(token_limit__gt=0))
                & Q(token_period_s__gt=0)
                & (Q(token_burst=None) | Q(token_burst__gt=0)),
                name="plan_version_tokens_positive",
            ),
            models.CheckConstraint(
                condition=Q(promise_credit_bp__lte=10_000), name="plan_version_promise_at_most_whole"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.plan} v{self.number}"


class Subscription(models.Model):
    """A tenant's plan version; its months are counted from `anchor`, in `time_zone`.

    `next_version`, when set, takes over at the end of the current period; with `is_ending` nothing does.
    """

    class State(models.TextChoices):
        ACTIVE = "active"
        ENDED = "ended"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey("gateway.Tenant", on_delete=models.PROTECT, related_name="subscriptions")
    version = models.ForeignKey(PlanVersion, on_delete=models.PROTECT, related_name="subscriptions")
    next_version = models.ForeignKey(PlanVersion, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    state = models.CharField(max_length=10, choices=State, default=State.ACTIVE)
    is_ending = models.BooleanField(default=False, db_default=False, help_text="Ends with its current month.")
    anchor = models.DateTimeField()
    time_zone = models.CharField(max_length=60, default="UTC")
    granted_until = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="End of the last period whose credit was granted."
    )
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant"], condition=Q(state="active"), name="subscription_one_active_per_tenant"
            )
        ]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.version}"


class PlanMove(models.Model):
    """All tenants of a plan on their way to the newest version of a plan, `to` (the same one where that was published
    anew), a chunk at a time by periodic work.

    With `at_once` also those that get less credit then; without it these change at the end of their month. With
    `only_adds` nobody whose terms would differ in anything but more models. `last` is the last subscription that was
    looked at. `moved` counts those that changed or will, `refused` those that couldn't.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="moves")
    to = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="+")
    at_once = models.BooleanField(default=False)
    only_adds = models.BooleanField(default=False)
    total = models.PositiveIntegerField()
    moved = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True)
    last = models.UUIDField(null=True, blank=True)
    asked_by = models.CharField(max_length=254, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["plan"], condition=Q(ended_at__isnull=True), name="plan_move_one_at_a_time")
        ]

    def __str__(self) -> str:
        return f"{self.plan} to {self.to}"

    @property
    def done(self) -> int:
        """How many were looked at."""
        return self.moved + self.refused
