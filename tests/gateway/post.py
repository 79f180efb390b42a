"""The mail that was sent, once the sweep has been through what was queued."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.core import mail

from tenancy.models import User
from tenancy.services import people
from tenancy.services.mail import send_due_mail


def sent_mail() -> list[mail.EmailMessage]:
    """Send what is due; return all that was sent."""
    while send_due_mail():
        pass
    return mail.outbox


def link_in(letter: mail.EmailMessage, page: str) -> str:
    """Return the path of the link to that page in a mail."""
    [link] = re.findall(rf"http\S+/{page}/\S+/", letter.body)
    return urlsplit(link).path


def move(user: User, email: str) -> None:
    """Give the user another address, as the link of the mail to it does."""
    people.ask_for_address(user=user, email=email)
    token = link_in(sent_mail()[-1], "addresses").removeprefix("/addresses/").removesuffix("/")
    people.change_address(token=token)
