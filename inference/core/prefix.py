"""Keys of cached blocks: a chain of keyed hashes whose root is the isolation domain."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

Key = bytes
"""Digest of one full block and of everything before it."""

FORMAT = b"1"
DIGEST_BYTES = 16


class PrefixKeys:
    """Makes the keys of one model's blocks. Any thread may use it.

    The root of a chain is a hash over tagged, length-prefixed fields (format, model revision, dtype, block size,
    domain, adapter), so different fields never hash alike; each further key hashes its parent and one block's tokens.
    All are keyed with the worker's secret: no key can be predicted without it, and domains never share one.
    """

    def __init__(self, secret: bytes, *, model: str, dtype: str, block_size: int) -> None:
        self.block_size = block_size
        # BLAKE2b takes keys of up to 64 bytes, and the secret may be longer.
        self._secret = blake2b(secret, digest_size=32, person=b"sluice-prefix").digest()
        self._fields = (
            (b"format", FORMAT),
            (b"model", model.encode()),
            (b"dtype", dtype.encode()),
            (b"block", str(block_size).encode()),
        )
        self._pack = struct.Struct(f"<{block_size}I").pack

    def root(self, domain: str, adapter: str = "") -> Key:
        """Return the parent of every first block of `domain` that is computed with `adapter`."""
        digest = blake2b(key=self._secret, digest_size=DIGEST_BYTES, person=b"root")
        for tag, value in (*self._fields, (b"domain", domain.encode()), (b"adapter", adapter.encode())):
            digest.update(struct.pack("<II", len(tag), len(value)) + tag + value)
        return digest.digest()

    def next(self, parent: Key, tokens: Sequence[int]) -> Key:
        """Return the key of the block of `tokens` (`block_size` of them) that follows the block `parent`."""
        return blake2b(
            parent + self._pack(*tokens), key=self._secret, digest_size=DIGEST_BYTES, person=b"block"
        ).digest()

    def extend(self, keys: list[Key], root: Key, tokens: Sequence[int], count: int) -> None:
        """Extend `keys`, the chain of `tokens` under `root`, to `count` blocks."""
        size = self.block_size
        for index in range(len(keys), count):
            parent = keys[-1] if keys else root
            keys.append(self.next(parent, tokens[index * size : (index + 1) * size]))

    def keys(self, domain: str, tokens: Sequence[int], adapter: str = "") -> list[Key]:
        """Return the keys of the full blocks of `tokens`; a last, partial block has none."""
        chain: list[Key] = []
        self.extend(chain, self.root(domain, adapter), tokens, len(tokens) // self.block_size)
        return chain
