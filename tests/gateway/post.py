"""The mail that was sent, once the sweep has been through what was queued."""

from __future__ import annotations

from django.core import mail

from gateway.services.mail import send_due_mail


def sent_mail() -> list[mail.EmailMessage]:
    """Send what is due; return all that was sent."""
    while send_due_mail():
        pass
    return mail.outbox
