"""Promises of plans: what usage records say of them is summed, and what was missed is credited.

A miss is noted in the transaction that takes the request's event from the outbox, and credited in one that locks the
wallet, has the writer give the share back, and notes that it was decided: so each miss is credited once, whatever is
killed between, and no two of a month pass its cap together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet, Sum

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
_ADD = """
    INSERT INTO billing_promiseday AS present (day, tenant, version_id, model, counted, missed, credited) VALUES {rows}
    ON CONFLICT (tenant, day, version_id, model) DO UPDATE SET counted = present.counted + excluded.counted,
        missed = present.missed + excluded.missed, credited = present.credited + excluded.credited
"""


def note(requests: Iterable[UUID]) -> None:
    """Count the promises of settled requests, and note those that were missed; within the transaction that takes their
    event, so once.
    """
    named = set(requests)
    columns = ("request", "day", "tenant", "wallet", "model", "promise")
    found = UsageRecord.objects.filter(day__in={day_of(one) for one in named}, request__in=named, revision=0)
    counted: Counter[Days] = Counter()
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
    missed = Counter(map(_days_of, misses))
    _add({days: (count, missed[days], 0) for days, count in counted.items()})


Days = tuple[date, UUID, UUID, str]


def _days_of(one: MissedPromise) -> Days:
    return one.day, one.tenant, one.version_id, one.model


def _add(sums: Mapping[Days, tuple[int, int, int]]) -> None:
    """Add (counted, missed, credited) to the sums of days, by one statement."""
    if not sums:
        return
    rows = sorted(sums.items())  # in one order, in which two lock them
    given = [(str(day), tenant.hex, version.hex, model, *more) for (day, tenant, version, model), more in rows]
    places = ", ".join(["(%s, %s, %s, %s, %s, %s, %s)"] * len(given))
    with connection.cursor() as cursor:
        cursor.execute(_ADD.format(rows=places), [value for row in given for value in row])


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
    found = list(revisions.order_by("revision"))
    records = {one.request: one for one in found}  # the last one of each
    measured = {one.request: one.promise for one in found if not one.revision}
    given: dict[date, int] = {}
    now = clock.now()
    refunds, credited = [], Counter[Days]()
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
            reason = f"Promise missed: {promises.in_words(promises.read(measured[one.request]))}"
            refunds.append(_refund(one, reason[:200]))
            credited[_days_of(one)] += one.credited
    answers = apply_now(refunds) if refunds else []
    assert answers == [Moved(one.amount) for one in refunds], answers
    _add({days: (0, 0, amount) for days, amount in credited.items()})
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
