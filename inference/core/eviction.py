"""Eviction of cached blocks: the least recently used of the domain that has most."""

from __future__ import annotations

from collections import OrderedDict


class CachedBlocks:
    """The free blocks that have a cached prefix, by isolation domain.

    Eviction takes from the domain with most blocks, so a tenant that floods the cache evicts its own. Domains are kept
    in buckets by their number of blocks, which makes each operation O(1); among domains with equally many blocks, the
    one whose number changed least recently loses one.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, OrderedDict[int, None]] = {}
        self._buckets: dict[int, OrderedDict[str, None]] = {}
        self._largest = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def count(self, domain: str) -> int:
        """How many blocks of `domain` are here."""
        return len(self._blocks.get(domain, ()))

    def add(self, block: int, domain: str) -> None:
        """Add `block` as the most recently used of `domain`."""
        blocks = self._blocks.setdefault(domain, OrderedDict())
        blocks[block] = None
        self._size += 1
        self._move(domain, len(blocks) - 1, len(blocks))

    def discard(self, block: int, domain: str) -> None:
        """Remove `block`, which is in use again."""
        blocks = self._blocks[domain]
        del blocks[block]
        self._size -= 1
        self._move(domain, len(blocks) + 1, len(blocks))

    def evict(self, requester: str, taken: int) -> int:
        """Remove one block and return it; there must be one.

        The domain `requester`, which needs it, has got `taken` new blocks in the same acquisition. It loses a block of
        its own once they would make it as large as the largest domain: no domain grows at the cost of an equal one.
        """
        own = self.count(requester)
        domain = requester if own and own + taken >= self._largest else next(iter(self._buckets[self._largest]))
        blocks = self._blocks[domain]
        block, _ = blocks.popitem(last=False)
        self._size -= 1
        self._move(domain, len(blocks) + 1, len(blocks))
        return block

    def domains(self) -> dict[str, list[int]]:
        """Return every domain's blocks, least recently used first."""
        return {domain: list(blocks) for domain, blocks in self._blocks.items()}

    def check(self) -> None:
        """Raise AssertionError unless the buckets agree with the blocks."""
        sizes = {domain: len(blocks) for domain, blocks in self._blocks.items()}
        buckets = {domain: count for count, bucket in self._buckets.items() for domain in bucket}
        assert sizes == buckets, (sizes, buckets)
        assert all(sizes.values()), "an empty domain is kept"
        assert self._largest == max(sizes.values(), default=0)
        assert self._size == sum(sizes.values())

    def _move(self, domain: str, old: int, new: int) -> None:
        if old:
            bucket = self._buckets[old]
            del bucket[domain]
            if not bucket:
                del self._buckets[old]
        if new:
            self._buckets.setdefault(new, OrderedDict())[domain] = None
        else:
            del self._blocks[domain]
        # A domain's size changes by one, so the largest size does too.
        if new > self._largest or self._largest not in self._buckets:
            self._largest = new
