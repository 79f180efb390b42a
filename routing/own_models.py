"""Which of a tenant's own models its plan serves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """What a plan serves of a tenant's own models: the oldest `most`, of `bases` (empty: of all)."""

    most: int = 0
    bases: frozenset[str] = frozenset()

    def obstacle(self, number: int, base: str) -> str:
        """Return why it doesn't serve the tenant's model of that `number`, the oldest's being 1, which is an adapter of
        `base`; "" where it does.
        """
        if not self.most:
            return "The plan has no room for adapters of one's own."
        if number > self.most:
            most = f"{self.most} adapter{'s' * (self.most != 1)}"
            return f"The plan has room for {most}, which older ones take: delete one of those."
        if self.bases and base not in self.bases:
            return f"The plan doesn't include {base}, which this is an adapter of."
        return ""


NONE_OF_ITS_OWN = OwnTerms()
