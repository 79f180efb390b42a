"""The tie between a kept answer and its generations: they are settled only once the answer is stored.

The keeper sets `delivering` in the task in which it runs an endpoint, so that no endpoint has to pass it on: whatever
generation begins in that task, or in one that it starts, belongs to the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import msgspec

from billing.writer.operations import Release, Settle
from inference.types import EngineFault, FinishReason, Usage


class Outcome(msgspec.Struct, frozen=True):
    """The end of a generation, after its settle was answered.

    `charge` is in µcr, None while the settlement is pending: what there is of the answer is delivered all the same, and
    what it cost will stand in its usage record. `error` is the fault that ended it, and `is_waived` says that it was
    charged nothing for that; CANCELLED without an error means that the client disconnected. `sluice_reason` is
    ``credit_exhausted`` when the hold could not be extended. `available` is what the wallet has left, as far as this
    settle knew it. `stop` is the stop string or id that ended it. `not_enforced` is what the answer was to be held to
    (``json_schema``), where it shows that a foreign server didn't.
    """

    reason: FinishReason
    usage: Usage
    charge: int | None
    sluice_reason: str | None = None
    error: EngineFault | None = None
    is_waived: bool = False
    available: int | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None
    stop: str | int | None = None
    not_enforced: str = ""

    @property
    def has_record(self) -> bool:
        """Whether it has a usage record, or will have once its settlement is applied; without one nothing ran."""
        return self.charge is None or self.is_waived or bool(self.usage.classes())


Closings = dict[str, dict[str, Any] | None]
"""By request (hex): the `classes` that it is charged for, whether they are `exact`, and how it ended; None: nothing."""


class Delivery:
    """The generations of one `run` of a kept request, and whether its answer was stored."""

    def __init__(self, run: UUID) -> None:
        self.run = run
        self.outcomes: dict[UUID, Outcome] = {}
        self.closings: Closings = {}
        self.also: list[Callable[[], object]] = []
        """Done in the transaction that stores the answer."""
        self.needs_reader = True
        """Whether the run is ended when nobody reads it; what goes on by itself is read to its end."""
        self._open: set[UUID] = set()
        self._stored: bool | None = None
        self._is_decided = False
        self._changed = asyncio.Event()

    def begun(self, request: UUID) -> None:
        """Note that `request` has a hold that this answer decides about."""
        self._open.add(request)

    def ended(self, request: UUID, operation: Settle | Release, outcome: Outcome) -> None:
        """Note how the generation ended, and what closes its hold if the answer is stored."""
        self.outcomes[request] = outcome
        self.closings[request.hex] = None
        if isinstance(operation, Settle):
            exact, finish = operation.exact, operation.facts.finish
            self.closings[request.hex] = {"classes": dict(operation.classes), "exact": exact, "finish": finish}
        self._wake()

    @property
    def is_failed(self) -> bool:
        """Whether all that it ran failed through us: it is charged nothing, and may be asked for again."""
        return bool(self.outcomes) and not self.is_charged and all(one.error for one in self.outcomes.values())

    @property
    def is_charged(self) -> bool:
        """Whether something is charged for it."""
        return any(self.closings.values())

    def decide(self, *, is_stored: bool | None) -> None:
        """Let the generations be settled as they ended, or as undelivered, or (None: nobody knows) by the sweep; only
        the first decision counts.
        """
        if not self._is_decided:
            self._stored, self._is_decided = is_stored, True
            self._wake()

    async def is_stored(self) -> bool | None:
        """Wait for the decision."""
        while not self._is_decided:
            await self._changed.wait()
        return self._stored

    def settled(self, request: UUID, outcome: Outcome) -> None:
        """Note that the generation's hold is closed, or left to the sweep."""
        self.outcomes.setdefault(request, outcome)
        self._open.discard(request)
        self._wake()

    async def all_ended(self) -> None:
        """Wait until every generation has told its end."""
        while self._open - self.outcomes.keys():
            await self._changed.wait()

    async def all_settled(self) -> None:
        """Wait until no generation's hold is open."""
        while self._open:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


delivering: ContextVar[Delivery | None] = ContextVar("delivering", default=None)
