"""The states of periodic work."""

from __future__ import annotations

from django.db import models


class TaskState(models.Model):
    """The last success of one periodic task, and how often it failed since. `seconds` is how long that success took."""

    name = models.CharField(primary_key=True, max_length=60)
    succeeded_at = models.DateTimeField(null=True)
    seconds = models.FloatField(default=0.0)
    failures = models.PositiveIntegerField(default=0, help_text="Since the last success.")
    error = models.CharField(max_length=300, blank=True, help_text="Why it failed last.")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
