"""Alerts: troubles that somebody has to know of. Each is told once when it lasts, anew when it becomes critical, and
once more when it is over.

A source, such as the checks, says each minute which troubles it sees. A trouble that it sees twice in a row is told;
one that it hasn't seen for some rounds is over. So nobody is mailed about a trouble that lasts less than a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction

from base import clock
from tenancy.models import Alert, Membership, Tenant, User
from tenancy.services import hooks
from tenancy.services.mail import Beginning, queue_mail

LASTS = timedelta(seconds=45)
"""After so long a trouble that is still seen is told."""
OVER = timedelta(seconds=150)
"""After so long without being seen a trouble is over."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A trouble as its source sees it now. `key` begins with the source's name and a colon."""

    key: str
    kind: str
    severity: str
    title: str
    text: str
    remedy: str = ""
    path: str = ""
    tenant: UUID | None = None


def observe(source: str, troubles: Sequence[Trouble]) -> None:
    """Take what a source sees now: all of its troubles, and no others."""
    now = clock.now()
    known = {row.key: row for row in Alert.objects.filter(resolved_at=None, key__startswith=f"{source}:")}
    new = []
    for trouble in troubles:
        words = {
            "severity": trouble.severity,
            "title": trouble.title[:200],
            "text": trouble.text[:1000],
            "remedy": trouble.remedy[:1000],
            "path": trouble.path,
        }
        row = known.pop(trouble.key[:250], None)
        if row is None:
            fixed = {"key": trouble.key[:250], "kind": trouble.kind, "tenant_id": trouble.tenant}
            new.append(Alert(**fixed, **words, raised_at=now, seen_at=now))
            continue
        has_worsened = row.told_at is not None and row.severity != trouble.severity == "critical"
        again = {"told_at": None} if has_worsened else {}
        Alert.objects.filter(pk=row.pk).update(**words, **again, seen_at=now)
        if has_worsened or (row.told_at is None and now - row.raised_at >= LASTS):
            _tell(row.pk)
    Alert.objects.bulk_create(new, ignore_conflicts=True)
    for row in known.values():
        if now - row.seen_at >= OVER:
            _end(row)


@transaction.atomic
def _tell(pk: UUID) -> None:
    """Tell of a trouble; whoever notes it first does."""
    if Alert.objects.filter(pk=pk, told_at=None, resolved_at=None).update(told_at=clock.now()):
        _send(Alert.objects.select_related("tenant").get(pk=pk))


@transaction.atomic
def _end(row: Alert) -> None:
    """End a trouble: nobody hears of one that nobody was told of."""
    if row.told_at is None:
        Alert.objects.filter(pk=row.pk, told_at=None).delete()
    elif Alert.objects.filter(pk=row.pk, resolved_at=None).update(resolved_at=clock.now()):
        _send(Alert.objects.select_related("tenant").get(pk=row.pk))


def _send(alert: Alert) -> None:
    is_over = alert.resolved_at is not None
    address = f"{settings.SLUICE_BASE_URL.rstrip('/')}{alert.path}" if alert.path else ""
    paragraphs = [f"It was seen last at {alert.seen_at:%Y-%m-%d %H:%M} UTC." if is_over else "", alert.text]
    if not is_over:
        paragraphs += [f"What to do: {alert.remedy}" if alert.remedy else "", f"Since {alert.raised_at:%H:%M} UTC."]
    text = "\n\n".join(filter(None, (*paragraphs, address))) + "\n"
    if alert.tenant:
        beginning = (Beginning.OVER if is_over else Beginning.NEEDS).format(alert.tenant.name)
    else:
        beginning = "Over: " if is_over else "Needs you: "
    subject = beginning + alert.title
    for to in receivers(alert.tenant):
        queue_mail(to=to, subject=subject, text=text)
    hooks.tell(
        alert.tenant,
        "alert.resolved" if is_over else "alert.raised",
        {
            "id": str(alert.id),
            "kind": alert.kind,
            "severity": alert.severity,
            "title": alert.title,
            "text": alert.text,
            "remedy": alert.remedy,
            "url": address,
            "tenant": alert.tenant.slug if alert.tenant else None,
            "raised_at": alert.raised_at.isoformat(),
            "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
        },
    )


def receivers(tenant: Tenant | None) -> list[str]:
    """Return the addresses that alerts go to: a tenant's owners, admins and billing; the operators that settings name,
    else all who may do everything.
    """
    return sorted(set(_operators() if tenant is None else _members(tenant)))


def _operators() -> Iterator[str]:
    if settings.SLUICE_ALERT_MAIL:
        yield from settings.SLUICE_ALERT_MAIL
        return
    staff = User.objects.filter(is_staff=True, is_active=True)
    yield from staff.filter(is_superuser=True).values_list("email", flat=True)
    yield from staff.filter(groups__name="admin").values_list("email", flat=True)


def _members(tenant: Tenant) -> Iterator[str]:
    roles = (Membership.Role.OWNER, Membership.Role.ADMIN, Membership.Role.BILLING)
    rows = Membership.objects.of(tenant).filter(is_active=True, role__in=roles, user__is_active=True)
    yield from rows.values_list("user__email", flat=True)
