"""The KV blocks of one model: how many sequences hold each, and which prefix each has cached.

    ┌──────┐  ┌──────────────────────── acquire(fresh) ───────────────────────┐
    │ null │  │                                                               ▼
    │  0   │  │  free, blank ───────────────────────────────────────────▶ in use (ref ≥ 1)
    └──────┘  │      ▲                                                    │  │     ▲
     never    │      │ it was never published                        │  │     │ acquire(cached): ref + 1
     handed   │      └──────────────────────── release: ref 0 ────────────┘  │     │
     out      │                                                              │     │
              │  free, cached ◀─────────── release: ref 0, key kept ─────────┘     │
              └──── │  evicted: loses its key; of the domain with most blocks      │
                    └──────────────────────────────────────────────────────────────┘

A block is published (its key becomes known) when a committed step has filled it; it is never written again until it is
evicted. A block that isn't full belongs to exactly one sequence. Block tables grow only at their end.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.core.eviction import CachedBlocks
from inference.core.prefix import Key

NULL_BLOCK = 0


class BlockPool:
    """The numbers 0 to `size` - 1 of the blocks, whose memory is the runner's.

    Block 0 is the null block, which padding points to; it is never handed out. Every operation but `check` and
    `references` takes time in proportion to the blocks that it names.
    """

    def __init__(self, size: int) -> None:
        if size < 2:
            raise ValueError("a pool has the null block and at least one more")
        self.size = size
        self._refs = [0] * size
        self._keys: list[Key | None] = [None] * size
        self._domains = [""] * size
        self._by_key: dict[Key, int] = {}
        self._blank = list(range(size - 1, 0, -1))  # a stack: the last one freed is the first one used
        self._cached = CachedBlocks()
        self.awaited: set[Key] = set()  # what those that don't fit would share
        self.arrivals = 0  # how often one of them was published

    @property
    def usable(self) -> int:
        """How many blocks can be handed out: all but the null block."""
        return self.size - 1

    @property
    def free(self) -> int:
        """How many blocks no sequence holds, those with a cached prefix included."""
        return len(self._blank) + len(self._cached)

    @property
    def cached(self) -> int:
        """How many free blocks have a cached prefix."""
        return len(self._cached)

    def match(self, keys: Sequence[Key]) -> list[int]:
        """Return the blocks of the longest published prefix of the chain `keys`; nothing changes."""
        blocks: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def fits(self, cached: Sequence[int], fresh: int, spare: int = 0) -> bool:
        """True when `acquire(cached, fresh, …)` would succeed and leave `spare` blocks free."""
        revived = sum(1 for block in cached if not self._refs[block])
        return self.free - revived >= fresh + spare

    def acquire(self, cached: Sequence[int], fresh: int, domain: str) -> list[int] | None:
        """Hold the matched blocks `cached` and `fresh` new ones for `domain`; return the new ones.

        Return None, having changed nothing, when there aren't enough. A matched block that was free counts as one of
        the free blocks used.
        """
        if not self.fits(cached, fresh):
            return None
        for block in cached:
            if not self._refs[block]:
                self._cached.discard(block, self._domains[block])
            self._refs[block] += 1
        return [self._take(domain, taken) for taken in range(fresh)]

    def release(self, blocks: Sequence[int]) -> None:
        """Release the blocks of a sequence's block table.

        The last one first, so that the end of a prefix is evicted before its start.
        """
        for block in reversed(blocks):
            if self._refs[block] < 1:
                raise ValueError(f"block {block} is not held")
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._keys[block] is None:
                self._blank.append(block)
            else:
                self._cached.add(block, self._domains[block])

    def publish(self, block: int, key: Key) -> None:
        """Publish the full, computed `block` under `key`.

        When another block has the key already (two sequences computed the same prefix at once), that one stays
        published and this one isn't: block tables are never rewritten.
        """
        if self._refs[block] < 1 or self._keys[block] is not None:
            raise ValueError(f"block {block} is free or published already")
        if key not in self._by_key:
            self._by_key[key] = block
            self._keys[block] = key
            if key in self.awaited:
                self.arrivals += 1

    def exclusive(self, blocks: Sequence[int]) -> int:
        """Return how many of a sequence's `blocks` no other holds."""
        return sum(1 for block in blocks if self._refs[block] == 1)

    def references(self) -> list[int]:
        """Return how many sequences hold each block."""
        return list(self._refs)

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds."""
        cached = {block: domain for domain, blocks in self._cached.domains().items() for block in blocks}
        self._cached.check()
        blank = set(self._blank)
        assert len(blank) == len(self._blank), "a blank block is listed twice"
        assert not blank & cached.keys(), "a free block is both blank and cached"
        free = blank | cached.keys()
        assert NULL_BLOCK not in free
        assert self._refs[NULL_BLOCK] == 0
        for block in range(1, self.size):
            assert self._refs[block] >= 0
            assert (self._refs[block] == 0) == (block in free), f"block {block}: {self._refs[block]} references"
            key = self._keys[block]
            assert key is None or self._by_key[key] == block
        for block, domain in cached.items():
            assert self._keys[block] is not None, f"block {block} is cached without a key"
            assert self._domains[block] == domain
        assert all(self._keys[block] is None for block in blank)
        assert sum(key is not None for key in self._keys) == len(self._by_key)

    def _take(self, domain: str, taken: int) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block = self._cached.evict(domain, taken)
            key = self._keys[block]
            assert key is not None  # only keyed blocks are in the cache
            del self._by_key[key]
            self._keys[block] = None
        self._refs[block] = 1
        self._domains[block] = domain
        return block
