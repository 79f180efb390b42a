"""The size of a K/V cache on a GPU, from what a step leaves free."""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVSpec

SHARE = 0.9  # of what is free: captured graphs and fragments take from the rest


class NoRoomError(ModelRefusedError):
    """The K/V cache doesn't fit beside the largest step: smaller steps may leave it room."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a largest step needs beyond the weights (`peak`), and those `free` between steps."""

    free: int
    peak: int

    def beside(self, reserve: int) -> Room:
        """Return the room that is left where `reserve` bytes stay free for others."""
        return Room(self.free - reserve, self.peak)

    def blocks(self, spec: KVSpec, block_size: int, *, tokens: int, max_tokens: int) -> int:
        """Return how many blocks to make, the null block included: for `tokens`, or with 0 for what fits.

        That is SHARE of what the step leaves, for `max_tokens` tokens at most. Raise NoRoomError when `tokens`
        don't fit, or not even one block does.
        """
        block_bytes = spec.bytes_per_token * block_size
        most = int(SHARE * max(0, self.free - self.peak)) // block_bytes - 1
        wanted = -(-(tokens or max_tokens) // block_size)
        if most < (wanted if tokens else 1):
            raise NoRoomError(
                f"there is no room for its K/V: {tokens or block_size} tokens take "
                f"{(wanted if tokens else 1) * block_bytes / 1e6:.1f} MB, and {SHARE:.0%} may be used of the "
                f"{(self.free - self.peak) / 1e6:.1f} MB that a step leaves free"
            )
        return min(most, wanted) + 1
