"""What a scheduler says to the loop around it."""

from __future__ import annotations

from dataclasses import dataclass

from inference.types import Finished, Started, Usage, Vector


@dataclass(slots=True)
class Output:
    """News of one request, in the order of the engine's contract: started, then tokens or vectors, then finished.

    `tokens` are for the text: the end-of-sequence token or stop id that ended the request is counted in `usage` but
    isn't among them. A request that ends before its first step was committed never says started. `text` is filled in
    by whoever has the tokenizer, who may find that the text ends the request otherwise than its tokens did.
    """

    request_id: str
    usage: Usage
    started: Started | None = None
    tokens: tuple[int, ...] = ()
    vectors: tuple[Vector, ...] = ()
    finished: Finished | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """A scheduler's state now, and what it did since it began.

    `running` holds rows (paused ones included), `kv_used` is the part of the pool that live requests hold and
    `kv_cached` the part that holds only cached prefixes.
    """

    running: int = 0
    paused: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    kv_cached: float = 0.0
    steps: int = 0
    preemptions: int = 0
