"""A routing query and its decision, as plain data."""

from __future__ import annotations

from uuid import UUID

import msgspec


class RouteQuery(msgspec.Struct, frozen=True):
    """A request as routing sees it, before it is tokenised. `model` is what the client wrote."""

    model: str
    kind: str  # "chat", "embedding" or "score"
    plan: str
    plan_default_task: str
    allowed_models: frozenset[str]  # empty allows all
    task: str | None = None  # the request's own task field
    prompt_characters: int = 0
    images: str = "none"  # what its messages have: "none", all as "data", or also "urls" that a server has to fetch


class Candidate(msgspec.Struct, frozen=True):
    """A model (then `deployment` is empty), a deployment, or its replica on `node` that was considered.

    `rejected` is why it was passed over, empty for the chosen one. Of replicas that could have served the request,
    `load` is the tokens that they have to compute and `matched` how many of the prompt's they have probably cached.
    """

    model: str
    deployment: str
    rejected: str = ""
    node: str = ""
    load: int | None = None
    matched: int | None = None


class Route(msgspec.Struct, frozen=True):
    """The chosen deployment and its replica, the rate card that prices it, and how it was chosen.

    `node` is the name of the replica's node, empty for a deployment that has none.
    """

    model: str
    deployment: UUID
    deployment_name: str
    replica: UUID
    node: str
    rate_card: str
    context_length: int
    task: str
    task_source: str  # "field", "endpoint", "alias" or "plan"
    rule: str  # the rule's name, or "" for a concrete model
    reason: str  # one sentence for people
    matched: int = 0  # tokens of the prompt that the replica has probably cached
    candidates: tuple[Candidate, ...] = ()

    def explain(self) -> dict[str, object]:
        """Return the decision as JSON-ready data, as it is stored with the request and shown."""
        return {
            "model": self.model,
            "deployment": self.deployment_name,
            "node": self.node,
            "task": self.task,
            "task_source": self.task_source,
            "rule": self.rule,
            "reason": self.reason,
            "candidates": [
                {
                    "model": c.model,
                    "deployment": c.deployment,
                    "node": c.node,
                    "load": c.load,
                    "matched": c.matched,
                    "rejected": c.rejected,
                }
                for c in self.candidates
            ],
        }
