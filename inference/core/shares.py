"""How many rows and blocks each tenant has of an engine, and how many are its share by weight."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Weights(Protocol):
    """The weight of each tenant with a request here, and their sum."""

    weights: dict[str, int]
    total_weight: int


class Shares:
    """The rows and blocks of each tenant that has any.

    A tenant's share is its weight's part of all weights with a request here, and of rows at least one. It is lent while
    nobody else wants it: a tenant above its share gives back to one that is below, but keeps one row, unless that is of
    a higher band and has waited. `reclaimed_at` is when that last happened for each tenant with rows.
    """

    def __init__(self, waiting: Weights, blocks: int) -> None:
        self.rows: Counter[str] = Counter()
        self.blocks: Counter[str] = Counter()
        self.reclaimed_at: dict[str, float] = {}
        self._present = waiting
        self._most_blocks = blocks

    def add(self, tenant: str, *, rows: int = 0, blocks: int = 0) -> None:
        """Count rows and blocks that `tenant` got, or with negative numbers gave up."""
        for counts, more in ((self.rows, rows), (self.blocks, blocks)):
            if more:
                counts[tenant] += more
                if not counts[tenant]:
                    del counts[tenant]
        if rows < 0 and tenant not in self.rows:
            self.reclaimed_at.pop(tenant, None)

    def row_share(self, tenant: str, rows: int) -> int:
        """How many of `rows` rows are the share of `tenant`."""
        return max(1, rows * self._present.weights[tenant] // self._present.total_weight)

    def block_share(self, tenant: str) -> int:
        """How many of the pool's blocks are the share of `tenant`."""
        return self._most_blocks * self._present.weights[tenant] // self._present.total_weight

    def is_above(self, tenant: str, rows: int, given_rows: int = 0, given_blocks: int = 0) -> bool:
        """Whether `tenant` has more than its share of `rows` rows or of the blocks, without those to be given up."""
        has = self.rows[tenant] - given_rows
        if has < 2:
            return False
        return has > self.row_share(tenant, rows) or self.blocks[tenant] - given_blocks > self.block_share(tenant)

    def is_below(self, tenant: str, rows: int, blocks: int) -> bool:
        """Whether `tenant` stays within its share with one more row and so many more `blocks`, or has no row yet."""
        if not self.rows[tenant]:
            return True
        fits = self.blocks[tenant] + blocks <= self.block_share(tenant)
        return fits and self.rows[tenant] < self.row_share(tenant, rows)

    def has_few(self, tenant: str, rows: int) -> bool:
        """Whether `tenant` has no row, or less than half of its share of `rows` rows."""
        has = self.rows[tenant]
        return not has or 2 * has < self.row_share(tenant, rows)
