"""Work on a batch as a whole: the right to it, for one process at a time, and the removal of lines that never run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db.models import QuerySet

from base import clock
from base.leases import is_free, lease_end
from gateway.batches.models import Batch, BatchLine

_REMOVED_AT_ONCE = 250


class LostError(Exception):
    """Another process works on the batch, since this one was silent for too long."""


class Work:
    """A batch that this process works on, until its lease ends after the last `renew`."""

    def __init__(self, batch: Batch, until: datetime) -> None:
        self.batch = batch
        self._until = until

    def mine(self, *statuses: str) -> QuerySet[Batch]:
        """Return the batch, if it is still this process' and has one of these statuses: for conditional updates."""
        rows = Batch.objects.unscoped().filter(id=self.batch.id, worked_until=self._until)
        return rows.filter(status__in=statuses) if statuses else rows

    def renew(self, *statuses: str) -> None:
        """Go on; raise LostError if another process has it, or if its status is none of these any more. What the same
        transaction does is done by one only.
        """
        until = lease_end()
        if not self.mine(*statuses).update(worked_until=until):
            raise LostError
        self._until = until


@contextmanager
def work_on(batches: QuerySet[Batch]) -> Iterator[Work | None]:
    """Take the oldest of `batches` that nobody works on; None where there is none.

    It is free again afterwards; where the work failed, at the end of its lease: until then others come before it.
    """
    free = is_free("worked_until", clock.now())
    for identifier in batches.filter(free).order_by("id").values_list("id", flat=True)[:10]:
        until = lease_end()
        # Whoever had it meanwhile may have done what it was found for.
        if batches.filter(free, id=identifier).update(worked_until=until):
            work = Work(Batch.objects.unscoped().get(id=identifier), until)
            has_failed = False
            try:
                yield work
            except LostError:
                return
            except Exception:
                has_failed = True
                raise
            finally:
                if not has_failed:
                    work.mine().update(worked_until=None)
            return
    yield None


def remove_lines(batch: Batch) -> None:
    """Remove the lines of a batch, none of which was ever to run, a part at a time."""
    while some := list(BatchLine.objects.filter(batch=batch).values_list("id", flat=True)[:_REMOVED_AT_ONCE]):
        BatchLine.objects.filter(id__in=some).delete()
