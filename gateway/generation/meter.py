"""The meter of one generation: what must be held, how much output that buys, and when to ask for more. Pure."""

from __future__ import annotations

import msgspec

from billing import rating
from billing.rating import CardPrices
from inference.types import Usage

LARGEST_SLICE = 4096


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
    goes back to the most expensive classes.

    Where the engine can't extend a running request, the first hold is the only one: for all of `max_output`, or what
    the credit allows.
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
        self.is_exhausted = False
        self.usage = Usage()
        self._known_allowance: int | None = None  # true until `held` or the prompt's classes change
        self._exact_allowance: int | None = None  # until the output changes, too
        self._refused_at: int | None = None  # the allowance beyond which no credit could be held when last asked
        self._prompt_tokens = prompt_tokens
        self._dearest = rating.dearest_input(prompt_tokens, card)
        self._classes: dict[str, int] | None = self._dearest  # None: those of `usage`
        self._output_class = rating.dearest_output_class(prompt_tokens, card)
        self._slice = min(slice_tokens, max_output) if can_extend else max_output
        self._largest_slice = max(slice_tokens, LARGEST_SLICE)
        self._can_extend = can_extend
        self._is_early = False

    def first_hold(self, most: int) -> HoldRequest:
        """Return the first hold: the prompt and a slice of output, but at most `most` µcr if one token fits in that.

        Where nothing can be held later, what `most` doesn't pay for is taken off `max_output`.
        """
        least = self._cost(min(1, self.max_output))
        if not self._can_extend and self.max_output:
            affordable = rating.output_tokens_for(most, self._paid(), self.card, self.multiplier_bp)
            self.max_output = self._slice = min(self.max_output, max(affordable, 1))
            self._exact_allowance = None
        return HoldRequest(amount=max(least, min(self._cost(self._slice), most)), least=least)

    @property
    def allowance(self) -> int:
        """Output tokens permitted in all."""
        if self._exact_allowance is not None:
            return self._exact_allowance
        more = rating.output_tokens_for(self.held, self._paid(), self.card, self.multiplier_bp)
        self._known_allowance = self._exact_allowance = min(self.max_output, self.usage.completion + more)
        return self._exact_allowance

    @property
    def allowed(self) -> tuple[int, bool]:
        """The allowance and whether it is final, as the engine takes them."""
        allowance = self.allowance
        return allowance, self.is_exhausted or allowance >= self.max_output or not self._can_extend

    def granted(self, total: int) -> None:
        """Note that `total` µcr are held."""
        self.held = max(self.held, total)
        self._known_allowance = self._exact_allowance = None
        if not self._can_extend:
            self.is_exhausted = self.allowance < self.max_output

    def ask_early(self) -> None:
        """Ask for more when less than a whole slice is left, not half: answers take long."""
        self._is_early = True

    def started(self, cached_tokens: int) -> None:
        """Note how many prompt tokens were cached."""
        cached = {"cache_read": cached_tokens} if cached_tokens else {}
        uncached = self._prompt_tokens - cached_tokens
        classes = ({"input": uncached} if uncached > 0 else {}) | cached
        if classes != self._classes:  # else it is the prompt that the hold was for, as without a cache
            self._known_allowance = self._exact_allowance = None
            self._classes = classes

    def restart(self) -> None:
        """Note that another engine begins the request anew: until it has started, its prompt may cost the most.

        What was cached at the engine before it says nothing of this one, and no engine takes an allowance back.
        """
        if self._classes != self._dearest:
            self._known_allowance = self._exact_allowance = None
            self._classes = self._dearest

    def used(self, usage: Usage) -> None:
        """Note the usage so far."""
        before, paid = self.usage, self._classes
        self.usage, self._classes, self._exact_allowance = usage, None, None
        known = (before.input, before.cache_read) if paid is None else (paid.get("input", 0), paid.get("cache_read", 0))
        if (usage.input, usage.cache_read) != known:
            self._known_allowance = None

    def next_hold(self) -> HoldRequest | None:
        """Return the next hold to ask for, twice the slice, when less than half a slice is left; else None.

        Since slices double, each answer may take twice as long as the one before it. After a refusal nothing is asked
        until the allowance is used up: others may have given credit back by then. Asked at every token, so it works
        the allowance out only when the last one known isn't enough: output that costs at most the dearest rate never
        makes it smaller.
        """
        if not self._can_extend:
            return None
        completion = self.usage.completion
        reach = self._slice if self._is_early else self._slice // 2
        if self._known_allowance is not None and self._known_allowance - completion > reach:
            return None
        allowance = self.allowance
        left = allowance - completion
        if self.is_exhausted or allowance >= self.max_output or left > reach:
            return None
        if left and self._refused_at == allowance:
            return None
        wanted = min(self._slice * 2, self._largest_slice, self.max_output - allowance)
        return HoldRequest(amount=self._cost(left + wanted), least=self._cost(left + 1), is_final=not left)

    def extended(self, request: HoldRequest, total: int) -> None:
        """Take note of an extension's answer; a short one leaves the slice as it is."""
        self.granted(total)
        if total >= request.amount:
            self._slice = min(self._slice * 2, self._largest_slice)

    def refused(self, request: HoldRequest) -> None:
        """Note that the hold could not be extended by even one token."""
        self._refused_at = self.allowance
        self.is_exhausted = request.is_final

    def charge(self, usage: Usage) -> int:
        """Return the µcr that `usage` costs."""
        return rating.charge(usage.classes(), self.card, self.multiplier_bp)

    def _paid(self) -> dict[str, int]:
        """Return the classes that are paid for before any more output."""
        return self.usage.classes() if self._classes is None else self._classes

    def _cost(self, more: int) -> int:
        """Return the charge of what was used (or of the prompt) and `more` output tokens at the dearest class."""
        classes = dict(self._paid())
        classes[self._output_class] = classes.get(self._output_class, 0) + more
        return rating.charge(classes, self.card, self.multiplier_bp)
