"""The choice of a rule's target for a request: drawn by weight, or under a ceiling the cheapest that holds it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from routing.catalogue import Ceiling, RuleEntry
from routing.places import Draw, Option, Places, candidate, drawn, over_price, told
from routing.types import Candidate, Price, Signal


class Picked(msgspec.Struct, frozen=True):
    """The option that a rule gives a request, a note for the reason, and the signal of its ceiling, if it has one.

    `ready` are the options of all targets that could have been drawn, were there no weights and prices.
    """

    option: Option
    note: str = ""
    signal: Signal | None = None
    ready: tuple[Option, ...] = ()


class Beyond(msgspec.Struct, frozen=True):
    """No target holds the rule's ceiling, and the rule refuses then."""

    ceiling: str


class Targets:
    """The targets of the rules of one decision.

    `meets` says whether a rule's conditions but its task hold; `unfit` returns why a model can't serve the request
    whatever its deployments; `price` what it would cost there.
    """

    def __init__(
        self,
        places: Places,
        meets: Callable[[RuleEntry], bool],
        unfit: Callable[[str], str],
        price: Callable[[str], Price | None],
        draw: Draw,
    ) -> None:
        self._meets = meets
        self._places = places
        self._unfit = unfit
        self._price = price
        self._draw = draw

    def pick(self, rule: RuleEntry) -> Picked | Beyond | None:
        """Return what the rule gives; None where none of its targets can serve."""
        beyond: list[str] = []  # models that hold no ceiling and could serve otherwise
        for targets, note in ((rule.targets, ""), (rule.fallbacks, " None of its targets can serve: a fallback.")):
            ready = self._ready(targets, rule.ceiling, beyond)
            if ready:
                return self._chosen(ready, rule.ceiling, note)
        if rule.ceiling is None or not beyond:
            return None
        if rule.ceiling.is_strict:
            return Beyond(told(rule.ceiling))
        return self._nearest(rule.ceiling, beyond)

    def may_give(self, rule: RuleEntry, model: str) -> bool:
        """Whether the rule's conditions but its task hold, and it names a model that can serve the request."""
        return model in rule.names and self._meets(rule) and not self._unfit(model)

    def of(self, rule: RuleEntry, model: str) -> Option | None:
        """Return where `model` would serve the request under the rule's ceiling; None where it wouldn't."""
        if why := over_price(rule.ceiling, self._price(model))[0]:
            self.pass_over(model, why)
            return None
        return self._places.of(model, rule.ceiling)

    def pass_over(self, model: str, reason: str) -> None:
        """Tell that the model was considered, and why it wasn't taken."""
        self._places.candidates.append(Candidate(model, "", reason))

    def cost_of(self, model: str) -> int:
        """Return what the request would cost there, in µcr; 0 where nobody knows."""
        price = self._price(model)
        return 0 if price is None else price.request

    def _ready(
        self, targets: Sequence[tuple[str, int]], ceiling: Ceiling | None, beyond: list[str]
    ) -> list[tuple[Option, int]]:
        """Return a replica of each target that can serve and holds the ceiling, with its weight."""
        ready: list[tuple[Option, int]] = []
        for name, weight in targets:
            if reason := self._unfit(name):
                self.pass_over(name, reason)
                continue
            if ceiling is not None and (reason := over_price(ceiling, self._price(name))[0]):
                self.pass_over(name, reason)
                beyond.append(name)
                continue
            option = self._places.of(name, ceiling)
            if option is not None:
                ready.append((option, weight))
            elif ceiling is not None and self._places.could_serve(name):
                beyond.append(name)
        return ready

    def _chosen(self, ready: list[tuple[Option, int]], ceiling: Ceiling | None, note: str) -> Picked:
        options = tuple(option for option, _ in ready)
        if ceiling is None:
            chosen = drawn(ready, self._draw)
            self._pass(ready, chosen, "the draw by weight chose another target")
            return Picked(chosen, note, ready=options)
        least = min(self.cost_of(option.deployment.model) for option, _ in ready)
        cheapest = [(option, weight) for option, weight in ready if self.cost_of(option.deployment.model) == least]
        self._pass([pair for pair in ready if pair not in cheapest], None, "it holds the ceiling and costs more")
        chosen = drawn(cheapest, self._draw)
        self._pass(cheapest, chosen, "it costs the same: the draw by weight chose another target")
        value = f"{told(ceiling)}: {chosen.deployment.model} is the cheapest of {len(ready)} that hold it"
        note = f"{note} It is the cheapest that holds the rule's ceiling."
        return Picked(chosen, note, _signal("decided", value), options)

    def _nearest(self, ceiling: Ceiling, beyond: Sequence[str]) -> Picked | None:
        """Return the option that comes nearest to the ceiling, though it doesn't hold it."""
        found: list[tuple[float, int, Option]] = []
        for name in beyond:
            option = self._places.of(name)
            if option is not None:
                excess = max(
                    over_price(ceiling, self._price(name))[1], self._places.excess_of(option.deployment, ceiling)
                )
                found.append((excess, self.cost_of(option.deployment.model), option))
        if not found:
            return None
        chosen = min(found, key=lambda one: one[:2])[2]
        self._pass([(option, 1) for _, _, option in found], chosen, "another is nearer to the ceiling")
        value = f"{told(ceiling)}: nothing holds it, {chosen.deployment.model} is the nearest"
        return Picked(chosen, " Nothing holds its ceiling: it is the nearest.", _signal("abstained", value))

    def _pass(self, options: Sequence[tuple[Option, int]], chosen: Option | None, reason: str) -> None:
        self._places.candidates.extend(candidate(option, reason) for option, _ in options if option is not chosen)


def _signal(outcome: str, value: str) -> Signal:
    return Signal("ceiling", outcome, value)
