"""The rules of rules' examples."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from routing.models import RouteRule

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
