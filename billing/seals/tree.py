"""Merkle trees as RFC 6962 has them: leaves and nodes are told apart by their first byte, and of an odd level the last
node goes up as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

BLOCK = 256
"""Leaves under each of the nodes that a seal keeps: a proof reads one block of rows, whatever the day's length."""

Path = list[tuple[str, bytes]]
_sha256 = hashlib.sha256


def leaf(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return _sha256(b"\0" + data).digest()


def root(nodes: Sequence[bytes]) -> bytes:
    """Return the root over nodes of one level: leaves' hashes, or the roots of blocks of 256 of them."""
    if not nodes:
        return _sha256(b"").digest()
    while len(nodes) > 1:
        nodes = _above(nodes)
    return nodes[0]


def _above(nodes: Sequence[bytes]) -> list[bytes]:
    pairs = zip(nodes[::2], nodes[1::2], strict=False)
    return [_sha256(b"\1" + left + right).digest() for left, right in pairs] + list(nodes[len(nodes) & ~1 :])


def path(nodes: Sequence[bytes], index: int) -> Path:
    """Return what must be hashed with a node, in turn, to get the root: the side on which each stands, and its hash."""
    found: Path = []
    while len(nodes) > 1:
        beside = index ^ 1
        if beside < len(nodes):
            found.append(("left" if beside < index else "right", nodes[beside]))
        nodes, index = _above(nodes), index // 2
    return found


def blocks(leaves: Iterable[bytes]) -> list[bytes]:
    """Return the roots of the blocks of leaves."""
    found: list[bytes] = []
    block: list[bytes] = []
    for one in leaves:
        block.append(one)
        if len(block) == BLOCK:
            found.append(root(block))
            block = []
    return [*found, root(block)] if block else found
