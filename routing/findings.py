"""What is wrong with rules by themselves: those that no request ever reaches, and names that nothing has.

An earlier rule keeps a later one from being reached where its conditions hold whenever the later one's do, and for each
model of the later one it has a model that takes whatever that takes. It decides then as long as one of its models is
ready; only for what falls through while none is, the later one is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Prefetch, QuerySet

from routing.catalogue import IMAGES
from routing.models import Deployment, PublicModel, RouteRule, RouteTarget
from routing.tasks import AUTO


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a rule, in a word and a sentence; a `grave` one means that the rule decides nothing."""

    word: str
    text: str
    grave: bool = True


@dataclass(frozen=True, slots=True)
class Able:
    """A model as far as it tells which requests it takes."""

    name: str
    kinds: frozenset[str]
    context: int
    images: int
    is_plain: bool  # no classifier, adapter or tenant's own, which routing passes over for reasons of their own

    def takes_all_of(self, other: Able) -> bool:
        """Whether it takes whatever the other takes."""
        return (
            self.is_plain
            and other.kinds <= self.kinds
            and other.context <= self.context
            and other.images <= self.images
        )


def rules_in_order() -> QuerySet[RouteRule]:
    """Return all rules in the order in which they are tried, with what `findings_of` reads."""
    targets = RouteTarget.objects.select_related("model__adapter").order_by("is_fallback", "-weight", "model__name")
    return RouteRule.objects.order_by("priority", "name").prefetch_related(
        Prefetch("targets", targets), "targets__model__deployments"
    )


def findings_of(
    rules: Sequence[RouteRule], plans: Mapping[str, Collection[str]], tasks: Collection[str]
) -> dict[RouteRule, list[Finding]]:
    """Return the findings of each rule, in the order in which rules are tried.

    The rules have their targets with models and deployments prefetched. `plans` are the models that each plan allows,
    by slug; none allows all.
    """
    found: dict[RouteRule, list[Finding]] = {}
    earlier: list[tuple[RouteRule, list[Able]]] = []
    for rule in rules:
        able = [able_of(target.model) for target in rule.targets.all() if target.model.is_active]
        found[rule] = [*_names(rule, plans, tasks), *_models(rule, able, plans)]
        if not rule.is_active:
            continue
        before = next((one for one, theirs in earlier if _covers(one, theirs, rule, able, plans)), None)
        if before is not None and able:
            text = f"“{before.name}” comes first and decides all that this rule would, while a model of it is ready."
            found[rule].append(Finding("never reached", text))
        earlier.append((rule, able))
    return found


def able_of(model: PublicModel) -> Able:
    """Return what a model takes; its deployments are prefetched."""
    sees = [IMAGES.index(_images(one)) for one in model.deployments.all() if one.is_active]
    kinds = frozenset(model.kinds)
    labels = "classification" in kinds and "chat" not in kinds
    is_plain = not labels and not hasattr(model, "adapter") and model.tenant_id is None
    return Able(model.name, kinds, model.context_length, max(sees, default=0), is_plain)


def _images(deployment: Deployment) -> str:
    named = deployment.options.get("images") if isinstance(deployment.options, Mapping) else None
    return named if named in IMAGES else IMAGES[0]


def _names(rule: RouteRule, plans: Collection[str], tasks: Collection[str]) -> Iterable[Finding]:
    if rule.plan and rule.plan not in plans:
        yield Finding("no such plan", f"There is no plan “{rule.plan}”, so no request is of it.")
    if rule.task and rule.task not in tasks:
        text = f"SLUICE_TASKS doesn't list “{rule.task}”: only who writes {AUTO}:{rule.task} means it."
        yield Finding("no such task", text, grave=False)
    least, most = rule.min_prompt_tokens, rule.max_prompt_tokens
    if least is not None and most is not None and least > most:
        yield Finding("never reached", f"No prompt has at least {least:,} and at most {most:,} tokens.")


def _models(rule: RouteRule, able: Sequence[Able], plans: Mapping[str, Collection[str]]) -> Iterable[Finding]:
    for target in rule.targets.all():
        if not target.model.is_active:
            yield Finding("no such model", f"{target.model.name} is withdrawn.", grave=False)
    if not able:
        yield Finding("no model", "It has no model that is in the catalogue: auto passes it over.")
        return
    least = rule.min_prompt_tokens or 0
    if all(one.context < least for one in able):
        yield Finding("never reached", f"None of its models takes prompts of {least:,} tokens.")
    allowed = plans.get(rule.plan)
    if rule.plan and allowed and not any(one.name in allowed for one in able if one.is_plain):
        yield Finding("not in the plan", f"The plan “{rule.plan}” includes none of its models.")


def _covers(
    one: RouteRule,
    theirs: Sequence[Able],
    rule: RouteRule,
    able: Sequence[Able],
    plans: Mapping[str, Collection[str]],
) -> bool:
    """Whether `one`, which comes first, decides whatever `rule` would."""
    holds = (
        one.plan in {"", rule.plan}
        and one.task in {"", rule.task}
        and one.structure in {"", rule.structure}
        and (one.min_prompt_tokens or 0) <= (rule.min_prompt_tokens or 0)
        and (one.max_prompt_tokens is None or one.max_prompt_tokens >= (rule.max_prompt_tokens or float("inf")))
    )
    if not holds:
        return False
    concerned = [plans[rule.plan]] if rule.plan in plans else list(plans.values())
    for model in able:
        for allowed in concerned:
            if allowed and model.is_plain and model.name not in allowed:
                continue  # on this plan it takes nothing
            if not any(other.takes_all_of(model) and (not allowed or other.name in allowed) for other in theirs):
                return False
    return True
