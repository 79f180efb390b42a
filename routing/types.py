"""A routing query and its decision, as plain data."""

from __future__ import annotations

from uuid import UUID

import msgspec

from routing.hook import NONE_OF_ITS_OWN, Instruction, OwnTerms

SOURCES = ("field", "endpoint", "alias", "structure", "instruction", "examples", "plan")
"""The steps that may find a request's task, in their order."""
STEPS = (*SOURCES, "conversation", "ceiling", "adapter")
STEP_TITLES = {
    "field": "Request’s task field",
    "endpoint": "Endpoint",
    "alias": "Name of the model",
    "structure": "What the request has",
    "instruction": "What its instruction asks for",
    "examples": "Nearest example",
    "plan": "Plan’s default",
    "conversation": "Conversation",
    "ceiling": "Ceiling",
    "adapter": "Adapters that are refused",
}
OUTCOMES = ("decided", "passed", "abstained", "skipped")


def percent(share: float) -> str:
    """Return a share as whole percent."""
    return f"{share * 100:.0f} %"


class Similarity(msgspec.Struct, frozen=True):
    """How near a request's text comes to the nearest `example` of a rule: the cosine of their embeddings."""

    rule: str
    similarity: float
    example: str = ""

    @property
    def percent(self) -> str:
        """The similarity for people."""
        return percent(self.similarity)


class Comparison(msgspec.Struct, frozen=True):
    """The likeness of a request's texts to the rules' examples; of a text that could not be compared
    `abstained` says why.

    `groups` has for each text that was compared the nearest example of each rule, the most similar first.
    """

    groups: tuple[tuple[Similarity, ...], ...] = ()
    abstained: str = ""


class Kept(msgspec.Struct, frozen=True):
    """The model that a conversation has (`Route.goes_on_with`)."""

    model: str


class Price(msgspec.Struct, frozen=True):
    """A model's price for the tenant, in µcr: a million output tokens, and this request as far as that is known."""

    per_million: int
    request: int


class Signal(msgspec.Struct, frozen=True):
    """One step of a decision: what it looked at and found, as a sentence, and what came of it.

    `outcome` is "decided", "passed" (it says nothing of this request), "abstained" (it could not tell) or "skipped" (an
    earlier step had decided). `similarities` are those of the step "examples".
    """

    step: str  # one of STEPS
    outcome: str
    value: str
    similarities: tuple[Similarity, ...] = ()

    @property
    def title(self) -> str:
        """The step's name for people."""
        return STEP_TITLES[self.step]

    def explain(self) -> dict[str, object]:
        """Return the signal as JSON-ready data. Examples are their operator's: only their rules are told."""
        told: dict[str, object] = {"step": self.step, "outcome": self.outcome, "value": self.value}
        if self.similarities:
            told["similarities"] = [
                {"rule": one.rule, "similarity": round(one.similarity, 3)} for one in self.similarities
            ]
        return told


class RouteQuery(msgspec.Struct, frozen=True):
    """A request as routing sees it, before it is tokenised. `model` is what the client wrote.

    `instruction` is what it asks for in so many words, None where nothing is found or nobody reads. `compared` is what
    comparing its text with the rules' examples told, None where nobody compared it. `kept` is what the requests before
    it in its conversation were given. `stays` is the model that has begun to answer it, which no other may take over.
    """

    model: str
    kind: str  # "chat", "embedding", "score" or "classification"
    plan: str
    plan_default_task: str
    allowed_models: frozenset[str]  # empty allows all
    task: str | None = None  # the request's own task field
    prompt_characters: int = 0
    own: OwnTerms = NONE_OF_ITS_OWN  # whose own models it may name, and which of those the plan serves
    key_models: frozenset[str] = frozenset()  # what its key is for, of those; empty allows all
    images: str = "none"  # what its messages have: "none", all as "data", or also "urls" that a server has to fetch
    has_tools: bool = False
    has_schema: bool = False
    instruction: Instruction | None = None
    compared: Comparison | None = None
    kept: Kept | None = None
    stays: str = ""


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

    `node` is the name of the replica's node, empty for a deployment that has none. `is_specialist` says whether the
    model is one of `Catalogue.specialists`.
    """

    model: str
    deployment: UUID
    deployment_name: str
    replica: UUID
    node: str
    rate_card: str
    context_length: int
    task: str
    task_source: str  # the step that found it: one of SOURCES
    rule: str  # the rule's name, or "" for a concrete model
    reason: str  # one sentence for people
    adapter: str = ""  # what the engine adds to the deployment's weights
    matched: int = 0  # tokens of the prompt that the replica has probably cached
    candidates: tuple[Candidate, ...] = ()
    signals: tuple[Signal, ...] = ()  # the steps of a decision for ``auto``
    is_specialist: bool = False
    goes_on_with: str = ""  # the model that its conversation has from now on
    base: str = ""  # of a tenant's own model, whose name tells whose it is

    @property
    def counted_as(self) -> str:
        """The model's name where everybody may read it: of a tenant's own its base's."""
        return self.base or self.model

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
            "signals": [signal.explain() for signal in self.signals],
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
