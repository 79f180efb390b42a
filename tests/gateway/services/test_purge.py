"""What has ended is removed, in chunks, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.utils import timezone

from billing.ids import uuid7
from gateway.models import Invitation, RefusalCount, SignInLink
from gateway.services import links, members
from gateway.services.purge import purge

pytestmark = [pytest.mark.money, pytest.mark.django_db]


def left():
    return Session.objects.count(), SignInLink.objects.count(), Invitation.objects.unscoped().count()


@pytest.fixture
def rows(acme):
    now = timezone.now()
    for number in range(5):
        Session.objects.create(session_key=f"old{number}", expire_date=now - timedelta(seconds=1))
        links.mint_link(user=acme.owner)
        members.invite_member(tenant=acme.tenant, email=f"{number}@x.example")
    SignInLink.objects.update(expires_at=now - timedelta(seconds=1))
<<<<<<< HEAD
    Invitation.objects.unscoped().update(expires_at=now - KEPT - timedelta(seconds=1))  # one was taken up
=======
    Invitation.objects.unscoped().filter(accepted_at=None).update(expires_at=now - timedelta(days=31))
>>>>>>> 083b2c2 (Show that messages come whole and once, that beat stops where nobody takes, and purge by the days of the settings)
    Session.objects.create(session_key="new", expire_date=now + timedelta(days=1))
    links.mint_link(user=acme.owner)
    members.invite_member(tenant=acme.tenant, email="open@x.example")
    late, _ = members.invite_member(tenant=acme.tenant, email="late@x.example")
    Invitation.objects.unscoped().filter(pk=late.pk).update(expires_at=now - KEPT + timedelta(seconds=1))
    return now


def test_it_goes_in_chunks_and_leaves_what_is_good(rows):
    assert left() == (6, 6, 8)
    assert purge(rows, limit=2) == 6
    assert left() == (4, 4, 6)
    assert [purge(rows, limit=2) for _ in range(3)] == [6, 3, 0]
    assert left() == (1, 1, 3)


def test_refusals_go_after_their_days(acme, settings):
    now = timezone.now()
    for days in (1, 9, 11):
        at = now - timedelta(days=days)
        RefusalCount(
            id=uuid7(), minute=at, tenant=acme.tenant, status=429, code="x", count=1, last_request=uuid7(), last_at=at
        ).save(force_insert=True)
    assert purge(now) == 0
    settings.SLUICE_REFUSAL_DAYS = 10
    assert purge(now) == 1
    assert RefusalCount.objects.of(acme.tenant).count() == 2


def test_jobs_do_it(rows):
    call_command("jobs", "--once")
    assert left() == (1, 1, 3)
