"""Which of a tenant's own models a request may know, and which of them its plan serves."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """Whose own models, and which of them a plan serves: the tenant's oldest `most`, of `bases` (empty: of all).

    Without a `tenant` nobody's. With a `project` those of that project and those that all projects share; without one
    every model of the tenant's, as its members and operators see them.
    """

    most: int = 0
    bases: frozenset[str] = frozenset()
    tenant: UUID | None = None
    project: UUID | None = None

    def sees(self, tenant: UUID, project: UUID | None) -> bool:
        """Whether it has the models of that tenant's project; None stands for those that all projects share."""
        return tenant == self.tenant and (None in (project, self.project) or project == self.project)

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
