"""Mail that is to be sent, and what became of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7


class OutgoingMail(models.Model):
    """One mail to one address, written in the transaction of what it tells of and sent later.

    Its text, which may hold a link that works by itself, is encrypted (`base.sealing`) and removed when it was sent.
    Of a mail that was given up it stays as long as the row, so that an operator may have it tried again.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    to = models.EmailField()
    subject = models.CharField(max_length=250)
    sealed_text = models.TextField()
    is_notice = models.BooleanField(default=False, db_default=False, help_text="Sent after all other mail.")
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True, help_text="Why the last attempt failed.")
    created_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        app_label = "gateway"
        verbose_name = "mail"
        verbose_name_plural = "outgoing mail"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["is_notice", "next_attempt_at"], condition=Q(state="waiting"), name="mail_waiting"),
        ]

    def __str__(self) -> str:
        return f"{self.subject} → {self.to}"
