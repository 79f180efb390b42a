"""The KV blocks of one model: who holds which, and which prefixes they still know.

    ┌──────┐  ┌──────────────────────── acquire(fresh) ───────────────────────┐
    │ null │  │                                                               ▼
    │  0   │  │  free, blank ───────────────────────────────────────────▶ in use (ref ≥ 1)
    └──────┘  │      ▲                                                    │  │     ▲
     never    │      │ its key was never published                        │  │     │ acquire(cached): ref + 1
     handed   │      └──────────────────────── release: ref 0 ────────────┘  │     │
     out      │                                                              │     │
              │  free, cached ◀─────────── release: ref 0, key kept ─────────┘     │
              └──── │  evicted: loses its key, the domain with most gives first    │
                    └──────────────────────────────────────────────────────────────┘

A block is published when a committed step filled it; from then on nobody writes to it. A partial block belongs to
exactly one sequence. Block tables grow only at their tail.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.core.eviction import CachedBlocks
from inference.core.prefix import Key

NULL_BLOCK = 0


class BlockPool:
    """`size` blocks of which block 0, the null block, is the target of padded writes and never handed out.

    Pure bookkeeping: blocks are numbers, their memory is the runner's. Every operation is O(blocks it names).
    """

    def __init__(self, size: int) -> None:
        if size < 2:
            raise ValueError("a pool has the null block and at least one more")
        self.size = size
        self._refs = [0] * size
        self._keys: list[Key | None] = [None] * size
        self._domains = [""] * size
        self._by_key: dict[Key, int] = {}
        self._blank = list(range(size - 1, 0, -1))  # a stack: the last one freed is the next one used
        self._cached = CachedBlocks()

    @property
    def usable(self) -> int:
        """Blocks that can be handed out at all."""
        return self.size - 1

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with a cached prefix included."""
        return len(self._blank) + len(self._cached)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and that keep a prefix until they are needed."""
        return len(self._cached)

    def cached_of(self, domain: str) -> int:
        """Blocks that nobody holds and that keep a prefix of `domain`."""
        return self._cached.count(domain)

    def match(self, keys: Sequence[Key]) -> list[int]:
        """Return the blocks of the longest known prefix of the chain `keys`; nothing changes."""
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

        All or nothing: None when there aren't enough, and then nothing changed. A matched block that nobody held
        counts against what is free, too.
        """
        if not self.fits(cached, fresh):
            return None
        for block in cached:
            if not self._refs[block]:
                self._cached.discard(block, self._domains[block])
            self._refs[block] += 1
        return [self._take(domain, taken) for taken in range(fresh)]

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's block table.

        From its end, so that a conversation's tail is evicted before its head.
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
        """Make the full, computed `block` known under `key`.

        Where another block has the key already (two sequences computed the same prefix at once), that one stays known
        and this one remains its holder's alone: block tables are never rewritten.
        """
        if self._refs[block] < 1 or self._keys[block] is not None:
            raise ValueError(f"block {block} is free or published already")
        if key not in self._by_key:
            self._by_key[key] = block
            self._keys[block] = key

    def references(self) -> list[int]:
        """How many holders each block has."""
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
