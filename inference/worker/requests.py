"""A submitted request inside the worker, and the commands that reach the step thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inference.text.stream import TextStream
from inference.types import Usage
from inference.worker.deployment import Prompt, Scheduling, ServedEngine


@dataclass(slots=True, eq=False)
class Active:
    """One request from Submit to its Finished. The step thread writes `usage`, the reader thread may read it."""

    id: str
    session: bytes
    engine: ServedEngine
    prompt: Prompt
    allowance: int
    last: bool
    usage: Usage = field(default_factory=Usage)
    begun: bool = False
    text: TextStream | None = None
    scheduler: Scheduling | None = None


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """Queue this request."""

    active: Active


@dataclass(frozen=True, slots=True)
class ExtendCommand:
    """Raise an allowance."""

    active: Active
    allowance: int
    last: bool


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """End these requests."""

    requests: tuple[Active, ...]


@dataclass(frozen=True, slots=True)
class DrainCommand:
    """Take no new work for these deployments, end at `deadline` (monotonic) what still runs; then call `done`."""

    engines: tuple[ServedEngine, ...]
    deadline: float
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AddEngineCommand:
    """Serve one more deployment from now on."""

    engine: ServedEngine


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Leave the loop after this round."""


Command = SubmitCommand | ExtendCommand | CancelCommand | DrainCommand | AddEngineCommand | StopCommand
