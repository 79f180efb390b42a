"""Promises of plans: what usage records say of them is summed, and what was missed is credited.

A miss is noted in the transaction that takes the request's event from the outbox, and credited in one that locks the
wallet, has the writer give the share back, and notes that it was decided: so each miss is credited once, whatever is
killed between, and no two of a month pass its cap together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import date, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet, Sum

from base import clock
from base.ids import day_of
from billing import promises
from billing.codes import Code
from billing.models import MissedPromise, PromiseDay, UsageRecord, Wallet
from billing.services.sweeps import Sweep
from billing.services.wallets import lock
from billing.writer.apply import apply_now
from billing.writer.operations import Moved, Refund

CHUNK = 100


def note(requests: Iterable[UUID]) -> None:
    """Count the promises of settled requests, and note those that were missed; within the transaction that takes their
    event, so once.
    """
    named = set(requests)
    columns = ("request", "day", "tenant", "wallet", "model", "promise")
    found = UsageRecord.objects.filter(day__in={day_of(one) for one in named}, request__in=named, revision=0)
    counted: Counter[tuple[date, UUID, UUID, str]] = Counter()
    misses = []
    for request, day, tenant, wallet, model, kept in found.filter(promise__isnull=False).values_list(*columns):
        one = promises.read(kept)
        if one.not_counted:
            continue
        counted[day, tenant, one.version, model] += 1
        if one.missed:
            of = {"tenant": tenant, "version_id": one.version, "model": model, "day": day}
            misses.append(MissedPromise(request=request, wallet_id=wallet, **of))
    MissedPromise.objects.bulk_create(misses)
    missed = Counter((one.day, one.tenant, one.version_id, one.model) for one in misses)
    for days in sorted(counted):  # in one order, in which two consumers lock them
        _add(days, counted=counted[days], missed=missed[days])


def _add(days: tuple[date, UUID, UUID, str], **more: int) -> None:
    names = dict(zip(("day", "tenant", "version_id", "model"), days, strict=True))
    PromiseDay.objects.get_or_create(**names)
    PromiseDay.objects.filter(**names).update(**{name: F(name) + value for name, value in more.items()})


def credits_due() -> Sweep:
    """Return the sweep that credits missed promises, wallet by wallet."""
    return Sweep(_owed, credit)


def _owed() -> QuerySet[Wallet]:
    return Wallet.objects.filter(pk__in=MissedPromise.objects.filter(decided_at=None).values("wallet"))


def credit(wallet: UUID) -> None:
    """Credit all missed promises of the wallet, some at a time."""
    while _credit_some(wallet) == CHUNK:
        pass


@transaction.atomic
def _credit_some(wallet: UUID) -> int:
    """Credit the oldest misses of the wallet, and return how many were decided."""
    tenant = lock(wallet).tenant_id
    due = MissedPromise.objects.filter(wallet=wallet, decided_at=None).select_related("version")
    misses = list(due.order_by("request")[:CHUNK])
    revisions = UsageRecord.objects.filter(day__in={one.day for one in misses}, request__in=[one.pk for one in misses])
    records = {one.request: one for one in revisions.order_by("revision")}  # the last one of each
    given: dict[date, int] = {}
    now = clock.now()
    refunds = []
    for one in misses:
        month, record = one.day.replace(day=1), records[one.request]
        if month not in given:
            given[month] = _given_in(month, tenant)
        one.due = min(promises.due(record.price, one.version.promise_credit_bp), record.charge)
        cap = one.version.promise_cap
        one.credited = one.due if cap is None else max(min(one.due, cap - given[month]), 0)
        one.decided_at = now
        given[month] += one.credited
        if one.credited:
            reason = f"Promise missed: {promises.in_words(promises.read(record.promise))}"
            refunds.append(_refund(one, reason[:200]))
            _add((one.day, one.tenant, one.version_id, one.model), credited=one.credited)
    answers = apply_now(refunds) if refunds else []
    assert answers == [Moved(one.amount) for one in refunds], answers
    MissedPromise.objects.bulk_update(misses, ["due", "credited", "decided_at"])
    return len(misses)


def _given_in(month: date, tenant: UUID) -> int:
    """Return the µcr that misses of the month gave back so far."""
    until = (month + timedelta(days=31)).replace(day=1)
    days = PromiseDay.objects.filter(tenant=tenant, day__gte=month, day__lt=until)
    return days.aggregate(sum=Sum("credited"))["sum"] or 0


def _refund(one: MissedPromise, reason: str) -> Refund:
    assert one.credited, "nothing is given back"
    said = {"key": f"promise:{one.request}", "actor": "sluice", "reason": reason}
    return Refund(request=one.request, wallet=one.wallet_id, amount=one.credited, code=Code.PROMISE, **said)
