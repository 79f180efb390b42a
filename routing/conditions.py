"""Which rules a request meets, and which of them its text is compared with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from routing.catalogue import RuleEntry
from routing.types import RouteQuery

CHARACTERS_PER_TOKEN = 4  # an estimate: routing comes before tokenising


def tokens_of(query: RouteQuery) -> int:
    """Return about how many tokens the prompt has."""
    return -(-query.prompt_characters // CHARACTERS_PER_TOKEN)


def structure_of(query: RouteQuery) -> tuple[str, ...]:
    """Return what the request has of a rule's structures; "text" where it has none of the others."""
    has = {"tools": query.has_tools, "schema": query.has_schema, "images": query.images != "none"}
    return tuple(name for name, present in has.items() if present) or ("text",)


def meets(rule: RuleEntry, query: RouteQuery) -> bool:
    """Whether the rule's conditions hold, whatever the request's task is."""
    if rule.plan and rule.plan != query.plan:
        return False
    if rule.structure and rule.structure not in structure_of(query):
        return False
    tokens = tokens_of(query)
    if rule.min_prompt_tokens is not None and tokens < rule.min_prompt_tokens:
        return False
    return rule.max_prompt_tokens is None or tokens <= rule.max_prompt_tokens


def by_structure(query: RouteQuery, rules: Sequence[RuleEntry]) -> RuleEntry | None:
    """Return the first rule whose structure the request has, if it says a task: that is the request's."""
    return next((rule for rule in rules if rule.structure and rule.task and meets(rule, query)), None)


def by_instruction(query: RouteQuery, rules: Sequence[RuleEntry]) -> RuleEntry | None:
    """Return the first rule with examples for the task that the request's instruction asks for.

    Who gave a rule no examples doesn't want its task found by a request's text.
    """
    task = query.instruction.task if query.instruction is not None else ""
    return next((rule for rule in _by_text(query, rules) if rule.task == task), None)


def to_compare(query: RouteQuery, rules: Sequence[RuleEntry]) -> tuple[RuleEntry, ...]:
    """Return the rules with examples that may decide the task of a request that doesn't say it.

    Empty where the task makes no difference: no rule has examples, or one for any task comes before all that ask for
    one. Empty as well where its instruction has told.
    """
    return () if by_instruction(query, rules) is not None else _by_text(query, rules)


def _by_text(query: RouteQuery, rules: Sequence[RuleEntry]) -> tuple[RuleEntry, ...]:
    """Return the rules whose task the request's text may tell."""
    if query.kind != "chat" or by_structure(query, rules) is not None:
        return ()
    met = [rule for rule in rules if meets(rule, query)]
    first = next((rule for rule in met if rule.targets or rule.fallbacks), None)
    if first is None or not first.task:
        return ()
    return tuple(rule for rule in met if rule.examples and rule.task)
