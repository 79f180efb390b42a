"""The model of a turn of a conversation: the conversation's, or the one that the turn alone would get. Pure.

The conversation keeps its model where a rule still gives it that model for such a turn. It leaves its model where
the turn itself says its task and the task leads elsewhere, where the model is a specialist and the turn's task isn't
written, and where the turn alone would get a dearer general model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from routing.catalogue import Catalogue, RuleEntry
from routing.places import Option, told
from routing.targets import Picked, Targets
from routing.tasks import CERTAIN, Found
from routing.types import Signal


class Turn(msgspec.Struct, frozen=True):
    """Result of a turn: the `option` of the conversation's model that `rule` gives, None where the turn's own choice
    stands; `signals` say why. `goes_on_with` is the model that the conversation has from now on.
    """

    goes_on_with: str
    signals: tuple[Signal, ...]
    option: Option | None = None
    rule: RuleEntry | None = None


class Conversation:
    """A conversation that has had the model `kept`, which its tenant `knows` to be one still, and what is found of its
    next turn.
    """

    def __init__(
        self,
        kept: str,
        found: Found,
        catalogue: Catalogue,
        rules: Sequence[RuleEntry],
        targets: Targets,
        *,
        knows: bool,
    ) -> None:
        self._kept = kept
        self._knows = knows
        self._found = found
        self._catalogue = catalogue
        self._rules = rules
        self._targets = targets

    def turn(self, picked: Picked, rule: RuleEntry) -> Turn:
        """Return what the turn gets for which `rule` alone would give `picked`."""
        kept, fresh = self._kept, picked.option.deployment.model
        if kept == fresh:
            return _left(fresh, "decided", f"it goes on with {fresh}")
        same = next((option for option in picked.ready if option.deployment.model == kept), None)
        if same is not None:
            return self._keeps(same, rule, fresh)
        if why := CERTAIN.get(self._found.source):
            # A general model that was asked for something else in between is what talk comes back to.
            comes_back = (
                fresh in self._catalogue.specialists and self._knows and kept not in self._catalogue.specialists
            )
            value = f"it has {kept}; this turn is for {self._found.task}, as {why}, and that leads to {fresh}"
            return _left(kept if comes_back else fresh, "passed", value)
        if self._knows and self._rises(fresh):
            return _left(fresh, "decided", f"it began with {kept} and rises to {fresh}, which costs more")
        why = "no rule gives it to this request"
        if kept in self._catalogue.specialists:
            why = "a specialist takes tasks that are written"
        for giver in self._rules:
            if not self._targets.may_give(giver, kept):
                continue
            option = self._targets.of(giver, kept)
            if option is not None:
                return self._keeps(option, giver, fresh)
            why = "it can't serve this request now"
        self._targets.pass_over(kept, why)
        return _left(fresh, "passed", f"it began with {kept}, but {why}")

    def _keeps(self, option: Option, rule: RuleEntry, fresh: str) -> Turn:
        kept = self._kept
        signals = [_signal("decided", f"it keeps {kept}; this turn alone would have got {fresh}")]
        if rule.ceiling is not None:
            signals.append(Signal("ceiling", "decided", f"{told(rule.ceiling)}: {kept} holds it, and is kept"))
        return Turn(kept, tuple(signals), option, rule)

    def _rises(self, fresh: str) -> bool:
        return self._targets.cost_of(fresh) > self._targets.cost_of(self._kept)


def _left(goes_on_with: str, outcome: str, value: str) -> Turn:
    return Turn(goes_on_with, (_signal(outcome, value),))


def _signal(outcome: str, value: str) -> Signal:
    return Signal("conversation", outcome, value)
