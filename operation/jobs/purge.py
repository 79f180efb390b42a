"""Deletes rows that have ended, after the days for which the settings, or fewer days for which their tenant, keep them.
Credit and usage are never deleted.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import router
from django.db.models import Exists, OuterRef, Q, QuerySet

from billing.models import PaymentClaim, PaymentEvent, Purchase, Reconciliation
from billing.reconcile import last_good
from billing.selectors.reconciliation import last_whole
from billing.services.purchases import EVENT_DAYS
from gateway.apis.responses.models import StoredResponse
from gateway.conversations import Conversation
from gateway.durable.models import KeptAnswer
from gateway.runtime.models import RefusalCount, RefusedRequest
from tenancy.models import Alert, AuditEvent, Delivery, Invitation, OutgoingMail, SignInLink, Tenant
from tenancy.services.tenants import outlived


def purge(now: datetime, limit: int = 200) -> int:
    """Delete at most `limit` rows of each kind that are over by `now`, the database's time, and return how many."""
    return sum(_remove(rows, limit) for rows in _over(now))


def _over(now: datetime) -> list[QuerySet[Any]]:
    invited = now - timedelta(days=settings.SLUICE_INVITATION_DAYS)
    refused = now - timedelta(days=settings.SLUICE_REFUSAL_DAYS)
    signed_in = now - timedelta(seconds=settings.SESSION_COOKIE_AGE)
    unanswered = Q(accepted_at=None, expires_at__lt=invited)
    over: list[QuerySet[Any]] = [
        Session.objects.filter(expire_date__lt=now).order_by("expire_date"),
        UserSession.objects.filter(last_seen_at__lt=signed_in).order_by("id"),
        SignInLink.objects.filter(expires_at__lt=now).order_by("expires_at"),
        Invitation.objects.unscoped().filter(unanswered | Q(accepted_at__lt=invited)).order_by("id"),
        RefusalCount.objects.unscoped()
        .filter(Q(minute__lt=refused) | outlived("refusal_days", "minute", now))
        .order_by("minute"),
        RefusedRequest.objects.unscoped()
        .filter(Q(at__lt=refused) | outlived("refusal_days", "at", now))
        .order_by("at"),
        StoredResponse.objects.unscoped()
        .filter(
            Q(expires_at__lt=now)
            | Q(tenant__response_storage=Tenant.Storage.FORBIDDEN)
            | outlived("response_days", "created_at", now)
        )
        .order_by("expires_at"),
        Conversation.objects.unscoped()
        .filter(
            Q(changed_at__lt=now - timedelta(days=settings.SLUICE_RESPONSE_DAYS))
            | Q(tenant__response_storage=Tenant.Storage.FORBIDDEN)
            | outlived("response_days", "changed_at", now)
        )
        .order_by("changed_at"),
        OutgoingMail.objects.filter(ended_at__lt=now - timedelta(days=settings.SLUICE_MAIL_DAYS)).order_by("ended_at"),
        Delivery.objects.filter(ended_at__lt=now - timedelta(days=settings.SLUICE_MAIL_DAYS)).order_by("ended_at"),
        Alert.objects.filter(resolved_at__lt=now - timedelta(days=settings.SLUICE_MAIL_DAYS)).order_by("resolved_at"),
        KeptAnswer.objects.unscoped().filter(expires_at__lt=now).order_by("expires_at"),
        PaymentEvent.objects.filter(created_at__lt=now - timedelta(days=EVENT_DAYS)).order_by("created_at"),
        Purchase.objects.filter(state=Purchase.State.OPEN, created_at__lt=now - timedelta(days=EVENT_DAYS)).order_by(
            "created_at"
        ),
        PaymentClaim.objects.filter(
            ~Exists(Purchase.objects.filter(payment=OuterRef("payment"))),
            created_at__lt=now - timedelta(days=EVENT_DAYS),
        ).order_by("created_at"),
        Reconciliation.objects.filter(finished_at__lt=now - timedelta(days=settings.SLUICE_RECONCILIATION_DAYS))
        .exclude(pk__in=[one.pk for one in (last_good(), last_whole()) if one is not None])
        .order_by("id"),
    ]
    if settings.SLUICE_AUDIT_DAYS:
        audited = now - timedelta(days=settings.SLUICE_AUDIT_DAYS)
        over.append(AuditEvent.objects.unscoped().filter(at__lt=audited).order_by("at"))
    return over


def _remove(rows: QuerySet[Any], limit: int) -> int:
    chosen = list(rows.values_list("pk", flat=True)[:limit])
    if chosen:
        # One statement, past the tenants' scope and past the audit trail: nobody changes anything here.
        doomed = rows.model._base_manager.filter(pk__in=chosen)  # noqa: SLF001 - documented
        doomed._raw_delete(router.db_for_write(rows.model))  # noqa: SLF001 - `delete` sends signals for each row
    return len(chosen)
