"""The task of a request. The cheapest and most certain step that can tell decides.

A field of the request, its endpoint, the alias it asks for, its structure, what its instruction asks for in so many
words, the nearest of the rules' examples, or the plan's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from routing.catalogue import RuleEntry
from routing.hook import CLASSIFY
from routing.places import by_instruction, by_structure, structure_of, to_compare, tokens_of
from routing.types import Comparison, RouteQuery, Signal, Similarity, percent

AUTO = "auto"
_OF_ENDPOINTS = {"embedding": "embedding", "score": "rerank", "classification": CLASSIFY}
MOST_SIMILARITIES = 5  # that are told
CERTAIN = {
    "field": "its task field says so",
    "endpoint": "its endpoint says so",
    "alias": "the model's name says so",
    "structure": "what it has says so",
    "instruction": "its instruction says so",
}
"""The steps that find a task in what is written, and not by its likeness to an example or by default."""


class Found(msgspec.Struct, frozen=True):
    """The task of a request, the step that found it, and what each step up to the last said."""

    task: str
    source: str
    signals: tuple[Signal, ...]


def is_automatic(model: str) -> bool:
    """Whether `model` asks Sluice to choose: ``auto`` or ``auto:<task>``."""
    return model == AUTO or model.startswith(f"{AUTO}:")


def says_task(query: RouteQuery) -> tuple[str, str]:
    """Return the task that the request says itself and the step that reads it, or two empty strings."""
    if query.task:
        return query.task, "field"
    if task := _OF_ENDPOINTS.get(query.kind):
        return task, "endpoint"
    if query.model.startswith(f"{AUTO}:") and (alias := query.model.partition(":")[2]):
        return alias, "alias"
    return "", ""


def find_task(query: RouteQuery, rules: Sequence[RuleEntry]) -> Found:
    """Return the task of `query` for rules that are tried in this order."""
    task, source = says_task(query)
    if not is_automatic(query.model):
        return Found(task or query.plan_default_task, source or "plan", ())
    steps = [_field(query), _endpoint(query), _alias(query), _structure(query, rules), _instruction(query, rules)]
    steps.append(_examples(query, rules))
    steps.append((query.plan_default_task, Signal("plan", "decided", f"the default of the plan {query.plan}")))
    signals: list[Signal] = []
    found = source = ""
    for told, signal in steps:
        if found:
            signals.append(Signal(signal.step, "skipped", "the task was known before"))
            continue
        signals.append(signal)
        if told:
            found, source = told, signal.step
    return Found(found, source, tuple(signals))


def nearest_rule(compared: Comparison, rules: Iterable[RuleEntry]) -> tuple[RuleEntry | None, tuple[Similarity, ...]]:
    """Return the rule whose example comes nearest to one of the texts, if it is near enough, and of each rule the
    nearest example to any of them, the most similar first.
    """
    known = {rule.name: rule for rule in rules}
    best: dict[str, Similarity] = {}
    for one in (one for group in compared.groups for one in group if one.rule in known):
        if one.rule not in best or one.similarity > best[one.rule].similarity:
            best[one.rule] = one
    ranked = tuple(sorted(best.values(), key=lambda one: -one.similarity))
    near = (known[one.rule] for one in ranked if one.similarity >= known[one.rule].least_similarity)
    return next(near, None), ranked


_Step = tuple[str, Signal]


def _field(query: RouteQuery) -> _Step:
    if query.task:
        return query.task, Signal("field", "decided", f"the request says {query.task}")
    return "", Signal("field", "passed", "the request doesn't say its task")


def _endpoint(query: RouteQuery) -> _Step:
    if task := _OF_ENDPOINTS.get(query.kind):
        return task, Signal("endpoint", "decided", f"the endpoint is for {task}")
    return "", Signal("endpoint", "passed", "the endpoint is for any task")


def _alias(query: RouteQuery) -> _Step:
    alias = query.model.partition(":")[2]
    if alias:
        return alias, Signal("alias", "decided", f"{query.model} was asked for")
    return "", Signal("alias", "passed", f"{query.model} names no task")


def _structure(query: RouteQuery, rules: Sequence[RuleEntry]) -> _Step:
    value = f"{' and '.join(structure_of(query))}, about {tokens_of(query):,} tokens"
    rule = by_structure(query, rules)
    if rule is None:
        return "", Signal("structure", "passed", value)
    return rule.task, Signal("structure", "decided", f"{value}: as rule “{rule.name}” takes for {rule.task}")


def _instruction(query: RouteQuery, rules: Sequence[RuleEntry]) -> _Step:
    asked = query.instruction
    if asked is None:
        return "", Signal("instruction", "passed", "no instruction that names labels or fields was found")
    rule = by_instruction(query, rules)
    if rule is None:
        return "", Signal("instruction", "passed", f"{asked.reason}; no rule finds {asked.task} by what is written")
    return asked.task, Signal("instruction", "decided", f"{asked.reason}: as rule “{rule.name}” takes for {asked.task}")


def _examples(query: RouteQuery, rules: Sequence[RuleEntry]) -> _Step:
    candidates = to_compare(query, rules)
    if not candidates:
        return "", Signal("examples", "passed", "no rule's examples can make a difference")
    compared = query.compared
    if compared is None:
        return "", Signal("examples", "abstained", "its text was not compared with the rules' examples")
    if compared.abstained:
        return "", Signal("examples", "abstained", compared.abstained)
    rule, ranked = nearest_rule(compared, candidates)
    told = ranked[:MOST_SIMILARITIES]
    if rule is not None:
        found = next(one for one in ranked if one.rule == rule.name)
        value = f"{found.percent} similar to an example of rule “{rule.name}”"
        return rule.task, Signal("examples", "decided", value, told)
    if not told:
        return "", Signal("examples", "abstained", "there was nothing to compare")
    least = next(rule.least_similarity for rule in candidates if rule.name == told[0].rule)
    nearest = f"the nearest, of rule “{told[0].rule}”, is {told[0].percent} similar and has to be {percent(least)}"
    value = f"no example is near: {nearest}"
    return "", Signal("examples", "abstained", value, told)
