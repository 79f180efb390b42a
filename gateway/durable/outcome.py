"""How a generation ended, and what it cost."""

from __future__ import annotations

import msgspec

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
