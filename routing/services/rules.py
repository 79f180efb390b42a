"""Rules of auto: written with their targets, put in order, switched on and off; and what their examples may be."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from routing.models import PublicModel, RouteRule, RouteTarget

MOST_EXAMPLES = 64
MOST_CHARACTERS = 500
MOST_OF_ALL = 512
"""Of all active rules: a request's text is compared with each."""


class InvalidExamplesError(ValueError):
    """Why examples can't be a rule's."""


def checked_examples(examples: Sequence[str], task: str, besides: UUID | None = None) -> list[str]:
    """Return the examples without repetitions; raise InvalidExamplesError where they are too many, too long, or also
    those of a rule for another task. `task` is what they are for, `besides` the rule whose they become.
    """
    found = list(dict.fromkeys(example.strip() for example in examples if example.strip()))
    if len(found) > MOST_EXAMPLES:
        raise InvalidExamplesError(f"These are {len(found)} examples; a rule has at most {MOST_EXAMPLES}.")
    for example in found:
        if len(example) > MOST_CHARACTERS:
            start = f"“{example[:40]}…”"
            raise InvalidExamplesError(
                f"{start} has {len(example)} characters; at most {MOST_CHARACTERS} are compared."
            )
    rows = RouteRule.objects.filter(is_active=True)
    if besides is not None:
        rows = rows.exclude(pk=besides)
    others = list(rows.values_list("task", "examples"))
    shared = next((one for other, theirs in others if other != task for one in found if one in theirs), None)
    if shared is not None:
        raise InvalidExamplesError(f"“{shared[:80]}” is an example of another task too: it can't tell them apart.")
    total = len(found) + sum(len(theirs) for _, theirs in others)
    if total > MOST_OF_ALL:
        raise InvalidExamplesError(
            f"All rules together would have {total} examples; at most {MOST_OF_ALL} are compared."
        )
    return found


STEP = 10
"""Between the priorities of two rules that are numbered anew."""


@transaction.atomic
def write_rule(
    rule: RouteRule, targets: Sequence[tuple[PublicModel, int, bool]], *, is_last: bool = False
) -> RouteRule:
    """Store a rule, new or changed, with exactly these targets: model, weight, and whether it is a fallback only.

    One that `is_last` is tried after all others. Raise ValidationError by field.
    """
    if is_last:
        last = RouteRule.objects.order_by("-priority").values_list("priority", flat=True).first()
        rule.priority = (last or 0) + STEP
    rule.full_clean()
    rule.save()
    present = {target.model_id: target for target in rule.targets.all()}
    for model, weight, is_fallback in targets:
        target = present.pop(model.pk, None) or RouteTarget(rule=rule, model=model)
        if target._state.adding or (target.weight, target.is_fallback) != (weight, is_fallback):  # noqa: SLF001
            target.weight, target.is_fallback = weight, is_fallback
            target.full_clean(exclude=["rule", "model"])
            target.save()
    for gone in present.values():
        gone.delete()
    return rule


@transaction.atomic
def place_rule(rule: RouteRule, before: RouteRule | None) -> None:
    """Have the rule tried right before another, or last; as few others as can be get another number."""
    rows = list(RouteRule.objects.select_for_update().order_by("priority", "name"))
    moved = next(one for one in rows if one.pk == rule.pk)
    order = [one for one in rows if one.pk != rule.pk]
    at = len(order) if before is None else [one.pk for one in order].index(before.pk)
    if rows.index(moved) == at:
        return
    lower = order[at - 1].priority if at else None
    upper = order[at].priority if at < len(order) else None
    if upper is None:
        _renumber(moved, (lower or 0) + STEP)
    elif lower is None:
        _renumber(moved, upper - STEP)
    elif upper - lower > 1:
        _renumber(moved, lower + (upper - lower) // 2)
    else:
        order.insert(at, moved)
        for number, one in enumerate(order, 1):
            _renumber(one, number * STEP)


def _renumber(rule: RouteRule, priority: int) -> None:
    if rule.priority != priority:
        rule.priority = priority
        rule.save(update_fields=["priority"])


def set_active(rule: RouteRule, *, is_active: bool) -> None:
    """Let the rule be tried or passed over; raise InvalidExamplesError where others have its examples."""
    if is_active and rule.examples:
        checked_examples(rule.examples, rule.task, besides=rule.pk)
    rule.is_active = is_active
    rule.save(update_fields=["is_active"])
