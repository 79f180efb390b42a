"""The meter of one generation: what must be held, how much output that buys, and when to tell or ask for more. Pure."""

from __future__ import annotations

import msgspec

from billing import rating
from billing.rating import CardPrices
from inference.types import Usage

LARGEST_SLICE = 4096
CREDIT = "credit_exhausted"


class HoldRequest(msgspec.Struct, frozen=True):
    """A hold to ask for: `amount` µcr wanted, `least` acceptable; both absolute.

    `is_final` when the allowance is used up: a refusal then means that the credit is.
    """

    amount: int
    least: int
    is_final: bool = False


class Meter:
    """Prices one request with a pinned card version.

    `allowance` is the output that the hold pays for after the prompt: at the most expensive classes until `started`
    says what the prompt really is, at the actual classes from then on. No token beyond it may be generated. `restart`
    goes back to the most expensive classes. Output of the cheaper class makes it grow, and the engine knows nothing of
    that: it generates no more than `permit` told last, so that decides when more is told or asked for.

    Where the engine can't extend a running request, the first hold is the only one: for all of `max_output`, or what
    the credit allows. Such an engine counts by itself, and a prompt that it counts shorter may have dearer rates.
    """

    def __init__(
        self,
        card: CardPrices,
        multiplier_bp: int,
        *,
        prompt_tokens: int,
        max_output: int,
        slice_tokens: int,
        can_extend: bool = True,
    ) -> None:
        self.card = card
        self.multiplier_bp = multiplier_bp
        self.max_output = max_output
        self.held = 0
        self.short_of: str | None = None  # why no more can be held though more could be generated
        self.usage = Usage()
        self._allowance: int | None = None  # true until `held` or the usage changes
        self._told = (0, False)  # the allowance that the engine has, which is never above the meter's, and is it final
        self._refused_at: int | None = None  # what the engine had been told when no more credit could be held
        self._prompt_tokens = prompt_tokens
        self._holding = card if can_extend else card.dearest_up_to(prompt_tokens)
        self._dearest = rating.dearest_input(prompt_tokens, self._holding)
        self._classes: dict[str, int] | None = self._dearest  # None: those of `usage`
        self._output_class = rating.dearest_output_class(prompt_tokens, self._holding)
        self._slice = min(slice_tokens, max_output) if can_extend else max_output
        self._largest_slice = max(slice_tokens, LARGEST_SLICE)
        self.can_extend = can_extend
        self._is_early = False

    def first_hold(self, most: int) -> HoldRequest:
        """Return the first hold: the prompt and a slice of output, but at most `most` µcr if one token fits in that.

        Where nothing can be held later, what `most` doesn't pay for is taken off `max_output`.
        """
        least = self._cost(min(1, self.max_output))
        if not self.can_extend and self.max_output:
            affordable = rating.output_tokens_for(most, self._paid(), self._holding, self.multiplier_bp)
            self.max_output = self._slice = min(self.max_output, max(affordable, 1))
            self._allowance = None
        return HoldRequest(amount=max(least, min(self._cost(self._slice), most)), least=least)

    @property
    def allowance(self) -> int:
        """Output tokens permitted in all."""
        if self._allowance is None:
            more = rating.output_tokens_for(self.held, self._paid(), self._holding, self.multiplier_bp)
            self._allowance = min(self.max_output, self.usage.completion + more)
        return self._allowance

    @property
    def allowed(self) -> tuple[int, bool]:
        """The allowance and whether it is final, as the engine takes them."""
        allowance = self.allowance
        return allowance, self.short_of is not None or allowance >= self.max_output or not self.can_extend

    def permit(self) -> tuple[int, bool]:
        """Return what is allowed, which the engine is told now."""
        self._told = self.allowed
        return self._told

    @property
    def is_short(self) -> bool:
        """Whether the engine has nearly generated what it was told, so that it is to be told or to ask for more.

        Asked at every token, so it works nothing out.
        """
        return self.can_extend and not self._told[1] and self._told[0] - self.usage.completion <= self._reach

    @property
    def has_more(self) -> bool:
        """Whether the engine is to be told more: all there is, or at least as much as it has left.

        Each time it hears of half of what is left or more, so it hears of the last tokens in a few steps.
        """
        told, allowed = self._told[0], self.allowed
        return allowed != self._told and (allowed[1] or allowed[0] - told >= told - self.usage.completion)

    def granted(self, total: int) -> None:
        """Note that `total` µcr are held."""
        self.held = max(self.held, total)
        self._allowance = None
        if not self.can_extend and self.allowance < self.max_output:
            self.short_of = CREDIT

    def ask_early(self) -> None:
        """Ask for more when less than a whole slice is left, not half: answers take long."""
        self._is_early = True

    def started(self, cached_tokens: int) -> None:
        """Note how many prompt tokens were cached."""
        cached = {"cache_read": cached_tokens} if cached_tokens else {}
        uncached = self._prompt_tokens - cached_tokens
        classes = ({"input": uncached} if uncached > 0 else {}) | cached
        if classes != self._classes:  # else it is the prompt that the hold was for, as without a cache
            self._classes, self._allowance = classes, None

    def restart(self) -> None:
        """Note that another engine begins the request anew: until it has started, its prompt may cost the most.

        What was cached and told at the engine before it says nothing of this one.
        """
        self._classes, self._allowance, self._told = self._dearest, None, (0, False)

    def used(self, usage: Usage) -> None:
        """Note the usage so far."""
        self.usage, self._classes, self._allowance = usage, None, None

    def next_hold(self) -> HoldRequest | None:
        """Return the next hold to ask for, twice the slice, when less than half a slice is left; else None.

        Since slices double, each answer may take twice as long as the one before it. After a refusal nothing is asked
        until the engine has used up what it was told: others may have given credit back by then.
        """
        if not self.is_short:
            return None
        allowance = self.allowance
        left = allowance - self.usage.completion
        if self.short_of is not None or allowance >= self.max_output or left > self._reach:
            return None
        if left and self._refused_at == self._told[0]:
            return None
        wanted = min(self._slice * 2, self._largest_slice, self.max_output - allowance)
        return HoldRequest(amount=self._cost(left + wanted), least=self._cost(left + 1), is_final=not left)

    def extended(self, request: HoldRequest, total: int) -> None:
        """Take note of an extension's answer; a short one leaves the slice as it is."""
        self.granted(total)
        if total >= request.amount:
            self._slice = min(self._slice * 2, self._largest_slice)

    def refused(self, request: HoldRequest, why: str = CREDIT) -> None:
        """Note that the hold could not be extended by even one token, and `why`."""
        self._refused_at = self._told[0]
        if request.is_final:
            self.short_of = why

    def charge(self, usage: Usage) -> int:
        """Return the µcr that `usage` costs."""
        return rating.charge(usage.classes(), self.card, self.multiplier_bp)

    @property
    def _reach(self) -> int:
        return self._slice if self._is_early else self._slice // 2

    def _paid(self) -> dict[str, int]:
        """Return the classes that are paid for before any more output."""
        return self.usage.classes() if self._classes is None else self._classes

    def _cost(self, more: int) -> int:
        """Return the charge of what was used (or of the prompt) and `more` output tokens at the dearest class."""
        classes = dict(self._paid())
        classes[self._output_class] = classes.get(self._output_class, 0) + more
        return rating.charge(classes, self._holding, self.multiplier_bp)
