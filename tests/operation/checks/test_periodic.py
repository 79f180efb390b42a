"""What the checks of the periodic work and of the books find."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing import jobs
from billing.models import OutboxEvent, Reconciliation
from operation.checks import serving

pytestmark = pytest.mark.django_db


def says():
    return {"periodic work": next(iter(serving._sums(None))), "books": next(iter(serving._books(None)))}


def test_usage_that_nobody_sums_is_a_symptom():
    assert says()["periodic work"].is_fine
    event = OutboxEvent.objects.create(topic="usage", payload={"records": []})
    assert says()["periodic work"].is_fine
    OutboxEvent.objects.filter(pk=event.pk).update(created_at=timezone.now() - serving.LATE - timedelta(seconds=1))
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
