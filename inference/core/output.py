"""The outputs and the state of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from inference.types import Finished, Started, Usage, Vector


@dataclass(slots=True)
class Output:
    """What one step brought for one request, to be sent in this order: started, tokens or vectors, finished.

    `tokens` are those with text: the end-of-sequence token or stop id that ended the request is counted in `usage` but
    isn't among them. A request that ends before its first step is committed has no `started`. `text` and, after a stop
    string, `finished` are set by the engine, which has the tokenizer.
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
    """A scheduler's state now; `steps` and `preemptions` count from its start.

    `running` counts sequences with a slot (paused ones included), `paused` those at their allowance, with a slot or
    not. `kv_used` is the part of the pool that sequences hold, `kv_cached` the part that has only cached prefixes.
    """

    running: int = 0
    paused: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    kv_cached: float = 0.0
    steps: int = 0
    preemptions: int = 0
