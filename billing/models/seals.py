"""Signed seals over each tenant's days, the statements of its months, and what keeps both provable."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7


class SigningKey(models.Model):
    """An Ed25519 key of this installation; the one with the highest number signs. A trigger refuses other changes than
    sealing its secrets anew.

    `signature` is its predecessor's, "" for the first, and `own_signature` its own, both over its number, its public
    key, `since` and its predecessor's public key: who trusts one key can trust all. The private key is gone once a
    successor has come; the key of the salts is the same in all.
    """

    number = models.PositiveIntegerField(primary_key=True)
    public_key = models.CharField(max_length=64, help_text="32 bytes in hex.")
    sealed_key = models.TextField(blank=True)
    sealed_salts = models.TextField()
    since = models.DateTimeField()
    signature = models.CharField(max_length=128, blank=True)
    own_signature = models.CharField(max_length=128)

    class Meta:
        ordering = ["number"]

    def __str__(self) -> str:
        return f"Key {self.number}"


class LedgerSeal(models.Model):
    """The Merkle root over all rows that were booked for a tenant on the UTC days from `first` to `day`, signed and
    chained to the tenant's seal before; a trigger refuses changes.

    `balance` is what the tenant's wallets had posted at the end of `day`. `digest` is that of the signed text, which
    the next seal repeats as `previous`. `blocks` are the tree's nodes over 256 leaves each, with where each begins.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.UUIDField()
    number = models.PositiveIntegerField()
    first = models.DateField()
    day = models.DateField()
    size = models.PositiveIntegerField()
    root = models.CharField(max_length=64)
    balance = models.BigIntegerField()
    previous = models.CharField(max_length=64)
    key = models.PositiveIntegerField()
    sealed_at = models.DateTimeField()
    signature = models.CharField(max_length=128)
    digest = models.CharField(max_length=64)
    blocks = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "number"], name="ledger_seal_once_per_number"),
            models.UniqueConstraint(fields=["tenant", "day"], name="ledger_seal_once_per_day"),
            models.CheckConstraint(condition=Q(day__gte=models.F("first")), name="ledger_seal_days_in_order"),
        ]

    def __str__(self) -> str:
        return f"Seal {self.number} of {self.day}"


class Statement(models.Model):
    """The statement of a tenant's month that is over and sealed; a trigger refuses changes.

    `month` is the first day of the month in `time_zone`. `number` has no gaps over all tenants. `sums` are the lines,
    as `billing.statements.sums` made them; the rows stay where they are.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.UUIDField()
    month = models.DateField()
    number = models.PositiveIntegerField(unique=True)
    time_zone = models.CharField(max_length=60)
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    opening = models.BigIntegerField()
    closing = models.BigIntegerField()
    sums = models.JSONField()
    made_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "month"], name="statement_once_per_month")]

    def __str__(self) -> str:
        return f"Statement {self.number}"


class ErasedWords(models.Model):
    """The commitment to the words of a record or transfer as they were before an erasure, by the name of its leaf
    (``record:…``, ``transfer:…``); a trigger refuses changes.
    """

    leaf = models.CharField(primary_key=True, max_length=48)
    words = models.CharField(max_length=64)

    def __str__(self) -> str:
        return self.leaf
