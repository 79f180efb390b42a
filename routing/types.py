"""What routing takes and answers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """A request as routing sees it. `model` is what the client wrote; sizes are estimated before tokenising."""

    model: str
    kind: str  # "chat" or "embedding"
    plan: str
    plan_default_task: str
    allowed_models: frozenset[str]  # empty allows all
    task: str | None = None  # that the client named
    prompt_characters: int = 0
    max_output: int | None = None
    has_schema: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model or deployment that was looked at: why it was passed over, or empty where it was chosen."""

    model: str
    deployment: str
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The decision: deployment, price list, and how it came about (`explain()` is what is stored and shown)."""

    model: str
    deployment: UUID
    deployment_name: str
    rate_card: str
    context_length: int
    task: str
    task_source: str  # "field", "endpoint", "alias", "structure" or "plan"
    rule: str  # the rule's name, or "" for a concrete model
    reason: str  # one sentence for people
    candidates: tuple[Candidate, ...] = ()

    def explain(self) -> dict[str, object]:
        """The decision as JSON-ready data."""
        return {
            "model": self.model,
            "deployment": self.deployment_name,
            "task": self.task,
            "task_source": self.task_source,
            "rule": self.rule,
            "reason": self.reason,
            "candidates": [
                {"model": c.model, "deployment": c.deployment, "rejected": c.rejected} for c in self.candidates
            ],
        }
