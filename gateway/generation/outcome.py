"""How a generation ended, for whoever writes it to a client: usage, charge, and why."""

from __future__ import annotations

from dataclasses import dataclass

from inference.types import EngineFault, FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a generation, after its settle was answered.

    `charge` is in µcr, None when the settlement is pending (`error.code` is then ``settlement_pending``).
    `sluice_reason` is ``credit_exhausted`` when the hold could not be extended. `available` is what the wallet has
    left, as far as this settle knew it.
    """

    reason: FinishReason
    usage: Usage
    charge: int | None
    sluice_reason: str | None = None
    error: EngineFault | None = None
    available: int | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None
