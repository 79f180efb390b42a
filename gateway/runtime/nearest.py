"""Which examples vectors come nearest to. Pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

from routing.types import Comparison, Similarity

Numbers = tuple[float, ...]


def nearest(
    vectors: Iterable[Numbers], known: Sequence[tuple[str, Sequence[tuple[str, Numbers | None]]]]
) -> Comparison:
    """Return for each of `vectors` the nearest example of each rule; an example without a vector is left out."""
    groups = []
    for vector in vectors:
        found = []
        for rule, examples in known:
            # Vectors have length one: by their distance, which is computed at once and not element by element.
            pairs = [(1 - math.dist(vector, other) ** 2 / 2, text) for text, other in examples if other is not None]
            if pairs:
                similarity, text = max(pairs)
                found.append(Similarity(rule, similarity, text))
        groups.append(tuple(sorted(found, key=lambda one: -one.similarity)))
    return Comparison(tuple(groups))


def unit(data: bytes) -> Numbers | None:
    """Return the vector with length one; None where it has no direction, since something in it is no number or all of
    it is zero: nothing is near to that.
    """
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    length = math.hypot(*numbers)
    return tuple(number / length for number in numbers) if 0 < length < math.inf else None
