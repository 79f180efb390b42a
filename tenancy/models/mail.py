"""Messages that are to be sent, by mail or to a web-hook, and what became of them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from base.ids import uuid7


class Outgoing(models.Model):
    """A message that is written in the transaction of what it tells of and sent later (`tenancy.services.outbox`)."""

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True, help_text="Why the last attempt failed.")
    created_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        abstract = True


class OutgoingMail(Outgoing):
    """One mail to one address.

    Its text, which may hold a link that works by itself, is encrypted (`base.sealing`) and removed when it was sent.
    Of a mail that was given up it stays as long as the row, so that an operator may have it tried again.
    """

    to = models.EmailField()
    subject = models.CharField(max_length=250)
    sealed_text = models.TextField()
    is_notice = models.BooleanField(default=False, db_default=False, help_text="Sent after all other mail.")

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
