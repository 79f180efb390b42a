"""Months whose usage and charges are in files, by their checksums."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from base.ids import uuid7


class ArchivedMonth(models.Model):
    """A month of UTC whose usage records and transfers are in files; a trigger refuses other changes than those of a
    drop.

    `manifest` is the SHA-256 of the file that names the others. From `dropping_at` on the files are what is read, and
    at `dropped_at` the rows were gone. `may_drop` is true only inside a transaction that removes rows: the triggers of
    usage records and transfers let none go otherwise.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    month = models.DateField(unique=True)
    ends_at = models.DateTimeField()
    manifest = models.CharField(max_length=64)
    written_at = models.DateTimeField(db_default=Now())
    dropping_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    may_drop = models.BooleanField(default=False)

    class Meta:
        ordering = ["month"]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"


class ArchivedFile(models.Model):
    """A tenant's part of an archived month; a trigger refuses changes.

    `digest` is the SHA-256 of its rows' file, `index_digest` that of the file that finds requests in it. `blocks` has
    of each seal, by its number, where its blocks of 256 leaves begin in the file.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    month = models.ForeignKey(ArchivedMonth, on_delete=models.PROTECT, related_name="files")
    tenant = models.UUIDField()
    leaves = models.BigIntegerField()
    size = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    index_digest = models.CharField(max_length=64)
    blocks = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "month"], name="archived_file_once")]

    def __str__(self) -> str:
        return f"{self.month} of {self.tenant}"
