"""A submitted request inside the worker, and the commands that reach the step thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inference.text.prepare import Prompt
from inference.types import Usage
from inference.worker.deployment import Deployment


@dataclass(slots=True, eq=False)
class Request:
    """One request from Submit to its Finished. The step thread writes `usage`, the reader thread may read it."""

    id: str
    session: bytes
    deployment: Deployment
    prompt: Prompt
    allowance: int
    is_final: bool
    usage: Usage = field(default_factory=Usage)
    begun: bool = False


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    """Queue this request."""

    request: Request


@dataclass(frozen=True, slots=True)
class ExtendCommand:
    """Raise an allowance."""

    request: Request
    allowance: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """End these requests."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class DrainCommand:
    """Take no new work for these deployments (None: for all); cancel what still runs at `deadline` (monotonic seconds).

    When nothing runs any more, with `remove` the deployments are forgotten; then `done` is called.
    """

    deployments: tuple[Deployment, ...] | None
    deadline: float
    done: Callable[[], None]
    remove: bool = False


@dataclass(frozen=True, slots=True)
class AddCommand:
    """Serve one more deployment from now on; an earlier one of the same name is being removed."""

    deployment: Deployment


@dataclass(frozen=True, slots=True)
class RepriceCommand:
    """Use these rates of token classes for the fairness between tenants from now on."""

    deployment: Deployment
    rates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StopCommand:
    """End the loop after this iteration."""


Command = SubmitCommand | ExtendCommand | CancelCommand | DrainCommand | AddCommand | RepriceCommand | StopCommand
