"""What a re-rating came to, by tenant, model and class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import F, Sum
from django.db.models.functions import Abs

from billing.models import Rerating, ReratingSum


@dataclass(frozen=True, slots=True)
class Difference:
    """A tenant's, model's or class's requests and tokens with what they were charged and would be, in µcr.

    Classes have their parts of the prices, before what is refunded is taken off.
    """

    name: Any
    requests: int
    tokens: int
    before: int
    after: int

    @property
    def difference(self) -> int:
        """By how much more it is."""
        return self.after - self.before


def differences(run: Rerating, by: Literal["tenant", "model", "usage_class"], limit: int = 100) -> list[Difference]:
    """Return the sums of a run by tenant, model or class, those that differ most first, at most `limit`."""
    rows = ReratingSum.objects.filter(run=run)
    rows = rows.exclude(usage_class="") if by == "usage_class" else rows.filter(usage_class="")
    sums = {f"sum_{name}": Sum(name) for name in ("requests", "tokens", "before", "after")}
    found = rows.values(by).annotate(**sums).order_by(Abs(F("sum_after") - F("sum_before")).desc(), by)
    return [Difference(one[by], *(int(one[name]) for name in sums)) for one in found[:limit]]


def tokens_by_model(run: Rerating) -> dict[str, dict[str, int]]:
    """Return the tokens of a run's requests by model and class."""
    rows = ReratingSum.objects.filter(run=run).exclude(usage_class__in=("", "request"))
    found: dict[str, dict[str, int]] = {}
    for model, name, tokens in rows.values_list("model", "usage_class").annotate(sum=Sum("tokens")).order_by():
        found.setdefault(model, {})[name] = int(tokens)
    return found
