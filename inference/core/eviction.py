"""Which cached block goes first: of the domain that keeps most, the one unused for longest."""

from __future__ import annotations

from collections import OrderedDict


class CachedBlocks:
    """The free blocks that still hold a published prefix, by isolation domain.

    Every domain has the same share, so the domain furthest above it is the one with most blocks: a tenant that floods
    the cache evicts itself. Domains are kept in buckets by their number of blocks, which makes each operation O(1);
    among domains with equally many, the one whose number changed least recently gives first.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, OrderedDict[int, None]] = {}
        self._buckets: dict[int, OrderedDict[str, None]] = {}
        self._most = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def count(self, domain: str) -> int:
        """How many blocks of `domain` are here."""
        return len(self._blocks.get(domain, ()))

    def add(self, block: int, domain: str) -> None:
        """Take `block` in as the most recently used of `domain`."""
        blocks = self._blocks.setdefault(domain, OrderedDict())
        blocks[block] = None
        self._size += 1
        self._move(domain, len(blocks) - 1, len(blocks))

    def discard(self, block: int, domain: str) -> None:
        """Take `block` out because it is used again."""
        blocks = self._blocks[domain]
        del blocks[block]
        self._size -= 1
        self._move(domain, len(blocks) + 1, len(blocks))

    def evict(self, asking: str, taken: int) -> int:
        """Take out the block to be lost next and return it; there must be one.

        The domain `asking` has taken `taken` blocks in this go. It gives its own as soon as those would otherwise
        bring it to where the largest is, so that nobody grows at the cost of an equal.
        """
        own = self.count(asking)
        domain = asking if own and own + taken >= self._most else next(iter(self._buckets[self._most]))
        blocks = self._blocks[domain]
        block, _ = blocks.popitem(last=False)
        self._size -= 1
        self._move(domain, len(blocks) + 1, len(blocks))
        return block

    def domains(self) -> dict[str, list[int]]:
        """Every domain's blocks, least recently used first."""
        return {domain: list(blocks) for domain, blocks in self._blocks.items()}

    def check(self) -> None:
        """Raise AssertionError unless the buckets agree with the blocks."""
        sizes = {domain: len(blocks) for domain, blocks in self._blocks.items()}
        buckets = {domain: count for count, bucket in self._buckets.items() for domain in bucket}
        assert sizes == buckets, (sizes, buckets)
        assert all(sizes.values()), "an empty domain is kept"
        assert self._most == max(sizes.values(), default=0)
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
        # Numbers change by one, so the greatest one does too.
        if new > self._most or self._most not in self._buckets:
            self._most = new
