"""Run in a migrated home: leave `events` outbox events of one usage record each, and mail to send."""

from __future__ import annotations

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.db import transaction  # noqa: E402
from django.utils import timezone  # noqa: E402

from billing.ids import day_of, uuid7  # noqa: E402
from billing.models import OutboxEvent, UsageRecord  # noqa: E402
from gateway.services.mail import queue_mail  # noqa: E402


@transaction.atomic
def main(events: int) -> None:
    tenant, some = uuid7(), uuid7()
    for _ in range(events):
        request = uuid7()
        UsageRecord.objects.create(
            id=request, day=day_of(request), request=request, tenant=tenant, project=some, wallet=some, model="m",
            deployment=some, card_version=some, charge=0, held=1, reserved_at=timezone.now(),
        )  # fmt: skip
        OutboxEvent.objects.create(topic="usage", payload={"records": [str(request)]})
    queue_mail(to="somebody@x.example", subject="s", text="the only text of this mail")


main(int(sys.argv[1]))
