"""Beginnings of prompts that a replica has probably cached: an approximate index over hashes of their text.

Routing comes before tokenising, so the index is over text: a prompt's bytes are cut into chunks, and each full chunk
has a digest of itself and of everything before it, rooted in the model and the tenant. Tenants share no digest, as they
share no cache. A replica is taken to have all that was sent to it, the oldest forgotten first; an answer that says
otherwise (`forget`) corrects that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

CHUNK_BYTES = 256  # about 64 tokens
MOST_CHUNKS = 512
Digest = bytes


def chain(root: Iterable[str], texts: Iterable[str]) -> tuple[Digest, ...]:
    """Return the digests of the full chunks of `texts` one after the other, at most `MOST_CHUNKS`."""
    data = bytearray()
    for text in texts:
        data += text.encode(errors="surrogatepass")
        data += b"\0"
        if len(data) >= CHUNK_BYTES * MOST_CHUNKS:
            break
    parent = blake2b("\0".join(root).encode(errors="surrogatepass"), digest_size=16).digest()
    digests = []
    for start in range(0, min(len(data), CHUNK_BYTES * MOST_CHUNKS) - CHUNK_BYTES + 1, CHUNK_BYTES):
        parent = blake2b(parent + data[start : start + CHUNK_BYTES], digest_size=16).digest()
        digests.append(parent)
    return tuple(digests)


class PrefixIndex:
    """The digests that one replica has probably cached, at most `most`, least recently used first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._stamps: OrderedDict[Digest, int] = OrderedDict()  # when each was used last, counted
        self._now = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def matched(self, digests: Sequence[Digest]) -> int:
        """Return how many of the first `digests` are known."""
        count = 0
        for digest in digests:
            if digest not in self._stamps:
                break
            count += 1
        return count

    def add(self, digests: Sequence[Digest]) -> tuple[int, ...]:
        """Note that the replica computes these now; return when those that were known already had been used last."""
        self._now += 1
        before = []
        for digest in digests:
            if (stamp := self._stamps.pop(digest, None)) is not None:
                before.append(stamp)
            self._stamps[digest] = self._now
        while len(self._stamps) > self.most:
            self._stamps.popitem(last=False)
        return tuple(before)

    def forget(self, stamp: int) -> None:
        """Forget what was used at `stamp` or before: the replica has dropped something of that age."""
        while self._stamps and next(iter(self._stamps.values())) <= stamp:
            self._stamps.popitem(last=False)
