"""Holds of running requests, and the usage records, events and sums that they leave."""

from __future__ import annotations

from typing import Any, Self

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from base.ids import uuid7
from billing.models.ledger import Wallet


class Hold(models.Model):
    """Credit set aside for one running request; deleted when the request is settled or released. `id` is the request's.

    `owner` alone works on it until `lease_until`; a sweep then marks it orphaned, and from then on the lease is that of
    the sweep which looks at it. `checkpoint` is the usage so far (tokens by class), stored with each renewal.
    """

    class State(models.IntegerChoices):
        HELD = 0
        ORPHANED = 1

    id = models.UUIDField(primary_key=True, editable=False)
    wallet = models.ForeignKey(
        Wallet, on_delete=models.PROTECT, related_name="holds", db_constraint=False, db_index=False
    )
    tenant = models.UUIDField()
    project = models.UUIDField()
    api_key = models.UUIDField(null=True, blank=True)
    budget = models.UUIDField(null=True, blank=True, help_text="Written by the release before this alone.")
    windows = models.TextField(null=True, blank=True, help_text="Names of the budgets' windows that it counts in.")
    user = models.UUIDField(null=True, blank=True)
    model = models.CharField(max_length=120)
    deployment = models.UUIDField()
    card_version = models.UUIDField()
    multiplier_bp = models.IntegerField(default=10_000)
    state = models.SmallIntegerField(choices=State, default=State.HELD)
    amount = models.BigIntegerField()
    facts = models.JSONField(default=dict, blank=True, help_text="What its usage record will say of the request.")
    checkpoint = models.JSONField(default=dict, blank=True)
    owner = models.UUIDField(help_text="Incarnation of the gateway that works on it.")
    reserved_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    orphaned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(amount__gte=0), name="hold_amount_not_negative")]
        indexes = [
            models.Index(fields=["lease_until"], name="hold_lease_until"),
            models.Index(fields=["wallet"], name="hold_wallet"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class UsageRecordQuerySet(models.QuerySet["UsageRecord"]):
    """Usage records, of which a request has one for each revision."""

    def latest_revisions(self, **bounds: Any) -> Self:
        """Return those that no later revision replaces; those are looked for within `bounds`, conditions that all rows
        meet.
        """
        same = {"day": OuterRef("day"), "request": OuterRef("request")}
        return self.filter(~Exists(UsageRecord.objects.filter(**same, revision__gt=OuterRef("revision"), **bounds)))


class UsageRecord(models.Model):
    """The usage and charge of one request; a trigger refuses changes: a correction (true-up, refund, re-rating) is the
    next `revision`.

    `charge` is the whole charge as of this revision: its price less what is `refunded` of it. `formula` names the
    arithmetic, so that the price can be recomputed at any time from tokens, card version and multiplier. A release
    leaves a record with charge 0.
    The record of revision 0 has the request's own id. `budget` is zeros but for the release before this, which counts
    by it what is none of its own.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    day = models.DateField(help_text="UTC day of the request's uuid7.")
    request = models.UUIDField()
    revision = models.SmallIntegerField(default=0)
    tenant = models.UUIDField()
    project = models.UUIDField()
    api_key = models.UUIDField(null=True, blank=True)
    budget = models.UUIDField(null=True, blank=True, help_text="The key's budget that it counts in; zeros: in none.")
    windows = models.TextField(null=True, blank=True, help_text="Names of the budgets' windows that it counts in.")
    user = models.UUIDField(null=True, blank=True)
    end_user = models.CharField(max_length=64, blank=True, help_text="Keyed hash of the client's `user` field.")
    wallet = models.UUIDField()
    model = models.CharField(max_length=120)
    deployment = models.UUIDField()
    endpoint = models.CharField(max_length=40, blank=True)
    task = models.CharField(max_length=40, blank=True)
    route = models.JSONField(default=dict, blank=True, help_text="Decision, reason and candidates passed over.")
    input_tokens = models.IntegerField(default=0)
    cache_read_tokens = models.IntegerField(default=0)
    cache_write_short_tokens = models.IntegerField(default=0)
    cache_write_long_tokens = models.IntegerField(default=0)
    output_tokens = models.IntegerField(default=0)
    reasoning_tokens = models.IntegerField(default=0)
    card_version = models.UUIDField()
    multiplier_bp = models.IntegerField(default=10_000)
    formula = models.SmallIntegerField(default=1)
    charge = models.BigIntegerField()
    refunded = models.BigIntegerField(db_default=0, help_text="µcr of its price that were given back.")
    rerating = models.UUIDField(null=True, blank=True, help_text="The last run that re-rated it.")
    held = models.BigIntegerField(help_text="µcr that the hold had when it was closed.")
    exact = models.BooleanField(default=True)
    waived = models.BooleanField(default=False, help_text="We broke it and delivered nothing, so it cost nothing.")
    finish = models.CharField(max_length=40, blank=True)
    ttft_ms = models.IntegerField(null=True, blank=True)
    duration_ms = models.IntegerField(null=True, blank=True)
    promise = models.JSONField(
        null=True, blank=True, help_text="How it did by its plan's promise; empty: that makes none."
    )
    reserved_at = models.DateTimeField()
    settled_at = models.DateTimeField(db_default=Now())

    objects = UsageRecordQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["day", "request", "revision"], name="usage_record_once_per_revision"),
            models.CheckConstraint(condition=Q(charge__gte=0), name="usage_record_charge_not_negative"),
        ]
        indexes = [
            models.Index(fields=["tenant", "day", "request"], name="usage_record_tenant_day"),
            models.Index(fields=["api_key", "day", "request"], name="usage_record_key_day"),
            models.Index(fields=["tenant", "settled_at"], name="usage_record_tenant_settled"),
            models.Index(fields=["day", "request"], condition=Q(exact=False), name="usage_record_estimated"),
            models.Index(fields=["day", "request"], condition=Q(waived=True), name="usage_record_waived"),
        ]

    def __str__(self) -> str:
        return f"{self.request} r{self.revision}"

    @property
    def price(self) -> int:
        """The µcr that its tokens cost, refunded or not."""
        return self.charge + self.refunded

    @property
    def completion_tokens(self) -> int:
        """The generated tokens: output and reasoning, which is counted apart."""
        return self.output_tokens + self.reasoning_tokens


class OutboxEvent(models.Model):
    """An event written in the transaction of what it reports, for work that follows later; its consumer deletes it.

    Topic ``usage`` (one row per flush of the writer): ``{"records": [requests with a first usage record],
    "revisions": [[request, revision] of each correction]}``, the latter only where there are any.
    """

    id = models.BigAutoField(primary_key=True)
    topic = models.CharField(max_length=40)
    payload = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    attempts = models.SmallIntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["topic", "id"], name="outbox_event_topic")]

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class UsageRollup(models.Model):
    """Sums of usage by hour, key and model: what pages and reports read, never the raw records. Output includes
    reasoning, in what was summed since that is so. `cost` is the operator's, of those whose deployment was calibrated,
    and `costed` the charge of those.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    hour = models.DateTimeField()
    tenant = models.UUIDField()
    project = models.UUIDField()
    api_key = models.UUIDField(null=True, blank=True)
    model = models.CharField(max_length=120)
    requests = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    charge = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(db_default=0)
    costed = models.BigIntegerField(db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "tenant", "project", "api_key", "model"],
                name="usage_rollup_once",
                condition=Q(api_key__isnull=False),
            ),
            models.UniqueConstraint(
                fields=["hour", "tenant", "project", "model"],
                name="usage_rollup_once_without_key",
                condition=Q(api_key=None),
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "hour"], name="usage_rollup_tenant_hour"),
            models.Index(fields=["hour"], name="usage_rollup_hour"),
        ]

    def __str__(self) -> str:
        return f"{self.hour} {self.model}"


class KeyTotal(models.Model):
    """What a key was charged for requests of the hours before `until`: with the sums of the hours since, all of it.

    The row of zeros has until when those of all keys are.
    """

    api_key = models.UUIDField(primary_key=True)
    until = models.DateTimeField()
    charge = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.api_key)


class UsageDay(models.Model):
    """The rollups of one UTC day and model, summed over all tenants: what the operator's first page reads."""

    id = models.BigAutoField(primary_key=True)
    day = models.DateField()
    model = models.CharField(max_length=120)
    requests = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    cache_read_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    charge = models.BigIntegerField()
    cost = models.BigIntegerField(db_default=0)
    costed = models.BigIntegerField(db_default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "model"], name="usage_day_once")]

    def __str__(self) -> str:
        return f"{self.day} {self.model}"
