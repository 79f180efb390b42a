"""What one of doctor's checks found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symptom:
    """The result of one check: fine, or what to do."""

    subject: str
    finding: str
    mend: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.mend
