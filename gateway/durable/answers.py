"""The rows of kept answers: one claim for each key of a tenant, taken, renewed, and filled by whoever holds it.

Synchronous: the data plane calls these on its database threads. Every change names the run that it is about, so that
a gateway that lost its claim can neither store nor give up what is another's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import F, Q, QuerySet

from base import clock
from base.leases import LEASE, ended, is_free, lease_end
from base.sealing import SealError, seal_bytes, unseal_bytes
from gateway.durable.delivery import Closings
from gateway.durable.log import Head
from gateway.durable.models import KeptAnswer
from gateway.durable.room import ROOM
from gateway.errors.refusal import Refusal

KEPT_FOR = timedelta(hours=24)
_ERASED = (
    b'{"error":{"message":"This answer was deleted.","type":"invalid_request_error",'
    b'"param":null,"code":"response_not_found"}}'
)
_ERASED_HEADERS = {"headers": (("content-type", "application/json"),), "stream": False}
_LEVEL = 1  # of zlib: events repeat themselves so much that more effort saves little


class Claim(msgspec.Struct, frozen=True):
    """A claim to an answer: its tenant, its key, and a digest of everything that the answer depends on."""

    tenant: UUID
    key: str
    digest: bytes


class Stored(msgspec.Struct, frozen=True):
    """An answer that is complete."""

    head: Head
    body: bytes


class Found(msgspec.Struct, frozen=True):
    """The result of a claim: `is_ours` to run, or somebody runs it, or it `is_stored`. `is_other`: the key stands for
    another request.
    """

    run: UUID
    restarts: int
    is_ours: bool = False
    is_other: bool = False
    is_stored: bool = False


def claim(asked: Claim, run: UUID, owner: UUID, kept_for: timedelta = KEPT_FOR) -> Found:
    """Take the claim for `run`, if it is free: nobody had it, its answer expired, or its last run was lost or failed.

    A claim whose run was lost keeps its digest; one whose answer expired, or whose run failed, may be taken for another
    request.
    """
    now = clock.now()
    new = KeptAnswer(
        tenant_id=asked.tenant,
        key=asked.key,
        digest=asked.digest,
        run=run,
        owner=owner,
        lease_until=now + LEASE,
        expires_at=now + kept_for,
    )
    KeptAnswer.objects.unscoped().bulk_create([new], ignore_conflicts=True)
    row = _of(asked).first()
    if row is None:  # given up in that moment
        if KeptAnswer.objects.unscoped().filter(run=run).exists():
            raise ValueError(f"{run} makes another answer already: a run has one")
        return claim(asked, run, owner, kept_for)
    if row.run == run:
        return Found(run, row.restarts, is_ours=True)
    is_over = row.expires_at <= now
    is_given_up = is_over or (row.finished_at is None and row.owner is None)
    if not is_given_up:
        if bytes(row.digest) != asked.digest:
            return Found(row.run, row.restarts, is_other=True)
        if row.finished_at is not None or row.lease_until > now:
            return Found(row.run, row.restarts, is_stored=row.finished_at is not None)
    taken = KeptAnswer.objects.unscoped().filter(pk=row.pk, run=row.run, finished_at=row.finished_at)
    taken = taken.filter(Q(owner=None) | is_free("lease_until", now) | Q(expires_at__lte=now))
    is_taken = taken.update(
        digest=asked.digest,
        run=run,
        restarts=F("restarts") + 1,
        owner=owner,
        lease_until=now + LEASE,
        read_at=None,
        is_cancelling=False,
        about=None,
        expires_at=now + kept_for,
        finished_at=None,
        status=None,
        headers={},
        body=None,
        closings={},
    )
    if is_taken:
        return Found(run, row.restarts + 1, is_ours=True)
    return claim(asked, run, owner, kept_for)  # somebody else took it in that moment


def store(run: UUID, answer: Stored, closings: Closings, also: Iterable[Callable[[], object]] = ()) -> bool:
    """Store the answer of `run`, and do `also` in the same transaction; False, with nothing changed, when the claim is
    another run's by now. Safe to repeat.
    """
    body = seal_bytes(zlib.compress(answer.body, _LEVEL))
    with transaction.atomic():
        mine = KeptAnswer.objects.unscoped().filter(run=run)
        stored = mine.filter(finished_at=None, owner__isnull=False).update(
            finished_at=clock.now(),
            status=answer.head.status,
            headers={"headers": answer.head.headers, "stream": answer.head.is_stream},
            body=body,
            closings=closings,
        )
        if not stored:
            return mine.filter(finished_at__isnull=False).exists()
        for work in also:
            work()
    return True


def look(run: UUID) -> Found | None:
    """Return what is known of another gateway's `run`, and note there that it has a reader; None when it was given up,
    or its gateway is lost.
    """
    KeptAnswer.objects.unscoped().filter(run=run, finished_at=None).update(read_at=clock.now())
    row = KeptAnswer.objects.unscoped().filter(run=run).defer("body").first()
    if row is None or (row.finished_at is None and (row.owner is None or row.lease_until <= clock.now())):
        return None
    return Found(run, row.restarts, is_stored=row.finished_at is not None)


def run_of(tenant: UUID, key: str) -> UUID | None:
    """Return the run that makes, or made, the answer of a tenant's `key`; None where none does."""
    return KeptAnswer.objects.unscoped().filter(tenant=tenant, key=key).values_list("run", flat=True).first()


def read(run: UUID) -> Stored | None:
    """Return the stored answer of `run`; None where it isn't stored, or not any more."""
    row = KeptAnswer.objects.unscoped().filter(run=run, finished_at__isnull=False).first()
    return None if row is None else _stored(row)


def is_known(asked: Claim) -> bool:
    """Whether the answer of a claim is stored, or is being made."""
    row = _of(asked).first()
    return row is not None and (
        row.finished_at is not None or (row.owner is not None and row.lease_until > clock.now())
    )


def require_room(asked: Claim) -> None:
    """Raise the 429 Refusal where the tenant's answers take as much of the database as they may, and that of the claim
    isn't among them.
    """
    if ROOM.is_due(asked.tenant) and not is_known(asked):
        ROOM.require(asked.tenant)


def forget(run: UUID, *, was_told: bool) -> None:
    """Give the claim of `run` up: whoever comes next with its key runs it anew, under other numbers if any event
    `was_told`.
    """
    mine = KeptAnswer.objects.unscoped().filter(run=run, finished_at=None)
    if was_told:
        mine.update(owner=None)
    else:
        mine.delete()


def tell_of(run: UUID, response: UUID) -> None:
    """Note that the answer of `run` tells of a response that another run makes: it is erased with that."""
    KeptAnswer.objects.unscoped().filter(run=run).update(about=response)


def erase(request: UUID) -> None:
    """Keep nothing of what was stored as answer of `request`: whoever asks for it again is told. Its charge stays."""
    told = KeptAnswer.objects.unscoped().filter(Q(run=request) | Q(about=request), finished_at__isnull=False)
    told.update(status=404, headers=_ERASED_HEADERS, body=seal_bytes(zlib.compress(_ERASED)))


def ask_to_cancel(claim: Claim) -> None:
    """Have whichever gateway makes the answer of `claim` end it."""
    _of(claim).filter(finished_at=None).update(is_cancelling=True)


def to_cancel(owner: UUID) -> list[UUID]:
    """Return the runs of `owner` whose end was asked for."""
    asked = KeptAnswer.objects.unscoped().filter(owner=owner, finished_at=None, is_cancelling=True)
    return list(asked.values_list("run", flat=True))


def renew(owner: UUID, runs: Collection[UUID]) -> None:
    """Renew the leases of claims."""
    mine = KeptAnswer.objects.unscoped().filter(run__in=runs, owner=owner, finished_at=None)
    mine.update(lease_until=lease_end())


def end_leases_of_earlier_owners(owner: UUID) -> None:
    """End the leases of every claim that isn't `owner`'s: only for the holder of the one gateway's lock."""
    now = clock.now()
    others = KeptAnswer.objects.unscoped().filter(finished_at=None, lease_until__gt=now).exclude(owner=owner)
    others.update(lease_until=ended("created_at", now))


def closings_of(run: UUID) -> Closings | None:
    """Return what the requests behind the answer of `run` are charged for; None, and the claim given up for good, if it
    isn't stored: from then on it can't be.
    """
    unstored = KeptAnswer.objects.unscoped().filter(run=run, finished_at=None)
    unstored.update(owner=None)
    row = KeptAnswer.objects.unscoped().filter(run=run, finished_at__isnull=False).defer("body").first()
    return None if row is None else row.closings


def seconds_since_reader(run: UUID) -> float | None:
    """Return for how long no other gateway has had a reader; None when there was never one."""
    read_at = KeptAnswer.objects.unscoped().filter(run=run).values_list("read_at", flat=True).first()
    return None if read_at is None else (clock.now() - read_at).total_seconds()


def _of(asked: Claim) -> QuerySet[KeptAnswer]:
    """The row of a claim, without its answer, which may be large: that is for `read`."""
    return KeptAnswer.objects.unscoped().filter(tenant=asked.tenant, key=asked.key).defer("body")


def _stored(row: KeptAnswer) -> Stored:
    headers = tuple((name, value) for name, value in row.headers["headers"])
    assert row.status is not None, "a stored answer has a status"
    assert row.body is not None, "a stored answer has a body"
    try:
        body = unseal_bytes(bytes(row.body))
    except SealError as error:
        raise _unreadable() from error
    return Stored(Head(row.status, headers, row.headers["stream"]), zlib.decompress(body))


def _unreadable() -> Refusal:
    """The 503 for an answer that was stored under a secret which is gone: it is charged, so that nothing runs anew."""
    text = (
        "The answer of this idempotency key is encrypted under an earlier secret of this server, which its operator "
        "can give as a fallback. It is charged and not made again: for another answer take another key."
    )
    return Refusal(503, "answer_unreadable", text, should_retry=False)
