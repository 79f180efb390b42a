"""Sample tickets that the chat page offers where ``auto`` gives their task to a specialist."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from billing.models import Subscription
from fleet.adapters import own_terms
from routing.catalogue import Catalogue
from routing.places import meets, to_compare
from routing.tasks import AUTO
from routing.types import RouteQuery

_TICKET = (
    "Hello,\n\nI ordered a coffee grinder on 3 November 2025, order ORD-4810376. The tracking page has said"
    " “in transit” for nine days, and nothing has come. When will it be delivered?\n\nMarta Novak\nGdansk"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A request of a task to try; its `text` begins with the instruction, on a line of its own."""

    task: str
    title: str
    text: str


SAMPLES = (
    Sample(
        "classify",
        "Label a support ticket",
        "Classify this support ticket into one of these labels: billing, refund, delivery, defect, account, technical,"
        f" cancellation, sales, other. Answer with the label alone.\n\n{_TICKET}",
    ),
    Sample(
        "extract",
        "Take a ticket’s fields as JSON",
        "Extract these fields from the support ticket as JSON: order, product, date, name, phone. Use null for what is"
        f" not there.\n\n{_TICKET}",
    ),
)


def samples_for(catalogue: Catalogue, subscription: Subscription, ready: AbstractSet[str]) -> list[Sample]:
    """Return the samples whose task `auto` finds by their text and gives to a model that is `ready` and isn't for the
    plan's default task.
    """
    return [one for one in SAMPLES if _has_specialist(one, catalogue, subscription, ready)]


def _has_specialist(sample: Sample, catalogue: Catalogue, subscription: Subscription, ready: AbstractSet[str]) -> bool:
    version = subscription.version
    query = RouteQuery(
        model=AUTO,
        kind="chat",
        plan=version.plan.slug,
        plan_default_task=version.default_task,
        allowed_models=frozenset(version.allowed_models),
        own=own_terms(version, subscription.tenant_id),
        prompt_characters=len(sample.text),
    )
    met = [rule for rule in catalogue.rules_for(query.own) if meets(rule, query)]

    def models_for(task: str) -> set[str]:
        """Return the models that the first rule for the task gives to who is ready."""
        targets = ({name for name, _ in rule.targets} & ready for rule in met if rule.task in ("", task))
        return next(filter(None, targets), set())

    is_found = any(rule.task == sample.task for rule in to_compare(query, met))
    return is_found and bool(models_for(sample.task) - models_for(version.default_task))
