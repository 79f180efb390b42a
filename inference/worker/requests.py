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
    """Take no new work for these deployments (None: for all), end at `deadline` (monotonic) what still runs.

    When nothing runs any more, those that leave are forgotten, and `done` is called.
    """

    deployments: tuple[Deployment, ...] | None
    deadline: float
    done: Callable[[], None]
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class AddCommand:
    """Serve one more deployment from now on; one of the same name is about to leave."""

    deployment: Deployment


@dataclass(frozen=True, slots=True)
class RepriceCommand:
    """Share the deployment between tenants by these rates from now on."""

    deployment: Deployment
    rates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Leave the loop after this round."""


Command = SubmitCommand | ExtendCommand | CancelCommand | DrainCommand | AddCommand | RepriceCommand | StopCommand
