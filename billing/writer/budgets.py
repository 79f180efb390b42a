"""Keys' budgets as a flush reads them, under the lock of their wallet: what is left of each limit, and what counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import UUID


@dataclass(slots=True)
class BudgetRow:
    """A budget (`billing.models.Budget`); `decide` keeps it up to date as it walks the operations. Amounts are µcr."""

    id: UUID
    wallet: UUID
    day_limit: int | None
    month_limit: int | None
    total_limit: int | None
    held: int
    day: date
    day_spent: int
    month: date
    month_spent: int
    total_spent: int

    def turn(self, now: datetime) -> None:
        """Begin the day and the month that `now` is in, where they are later than those that were counted last."""
        today = now.astimezone(UTC).date()
        if today > self.day:
            self.day, self.day_spent = today, 0
        if (month := today.replace(day=1)) > self.month:
            self.month, self.month_spent = month, 0

    def rests(self) -> Iterator[tuple[int, str]]:
        """Yield how much a new hold may take under each limit, and which that is: ``day``, ``month``, ``total``."""
        for window, limit, spent in (
            ("day", self.day_limit, self.day_spent),
            ("month", self.month_limit, self.month_spent),
            ("total", self.total_limit, self.total_spent),
        ):
            if limit is not None:
                yield limit - spent - self.held, window

    def spend(self, charge: int) -> None:
        """Count a charge in all periods."""
        self.day_spent += charge
        self.month_spent += charge
        self.total_spent += charge

    def correct(self, difference: int, begun_at: datetime) -> None:
        """Count a correction of the charge of a request that began at `begun_at`.

        What is given back counts only in a period in which the request began: in another it would make room beyond the
        limit.
        """
        begun = begun_at.astimezone(UTC).date()
        if difference > 0 or begun >= self.day:
            self.day_spent += difference
        if difference > 0 or begun >= self.month:
            self.month_spent += difference
        self.total_spent += difference
