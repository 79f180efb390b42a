"""What doctor says of the periodic work."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing import jobs
from billing.models import OutboxEvent, Reconciliation
from operation.doctor.doctor import LATE, _periodic_work

pytestmark = pytest.mark.django_db


def says():
    return {one.subject: one for one in _periodic_work()}


def test_usage_that_nobody_sums_is_a_symptom():
    assert says()["periodic work"].is_fine
    event = OutboxEvent.objects.create(topic="usage", payload={"records": []})
    assert says()["periodic work"].is_fine
    OutboxEvent.objects.filter(pk=event.pk).update(created_at=timezone.now() - LATE - timedelta(seconds=1))
    assert "--once" in says()["periodic work"].mend
    for job in jobs.jobs():
        job.run()
    assert says()["periodic work"].is_fine


def test_findings_are_a_symptom():
    assert says()["books"].is_fine
    now = timezone.now()
    for found in (0, 3):
        Reconciliation.objects.create(started_at=now, finished_at=now, is_running=None, found=found)
        assert says()["books"].is_fine == (found == 0)
        now += timedelta(hours=1)
