"""The promise of a plan: how soon an answer begins and how fast it goes on, whether a request kept it, and what a miss
gives back. Plain arithmetic: the gateway measures, `services.promises` credits.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from base.units import format_credits

WHOLE_BP = 10_000
Reason = Literal["", "batch", "flex", "kind", "failed", "left", "short"]
NOT_COUNTED: dict[str, str] = {
    "batch": "lines of batches have no promise",
    "flex": "flex requests have no promise",
    "kind": "it is about generated answers alone",
    "failed": "it failed through us, and cost nothing",
    "left": "its client left before the promised time was over",
    "short": "the answer was too short, or was stopped too soon, to tell",
}
"""Why the promise isn't about a request, in words."""


class Promise(msgspec.Struct, frozen=True):
    """What a plan's version promises. Times are milliseconds; None promises nothing of the kind.

    A prompt may take `ttft_per_1k_ms` longer for each 1,000 of its tokens that no cache had. `rate` is in tokens a
    second, of answers with `rate_from` tokens or more.
    """

    version: UUID
    ttft_ms: int | None = None
    ttft_per_1k_ms: int = 0
    rate: int | None = None
    rate_from: int = 64

    def first_within(self, uncached: int) -> int | None:
        """Return within how many milliseconds the answer to a prompt begins of which no cache had `uncached` tokens."""
        return None if self.ttft_ms is None else self.ttft_ms + self.ttft_per_1k_ms * uncached // 1000


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request did by its promise, as its usage record keeps it: JSON, what is not there left out.

    `ttft_ms` and `rate` are None where the promise says nothing about them, or they can't be told. The `waited_ms`
    behind its own tenant's requests are no part of `ttft_ms`.
    """

    version: UUID
    not_counted: Reason = ""
    waited_ms: int = 0
    uncached: int = 0
    ttft_ms: int | None = None
    ttft_most_ms: int | None = None
    rate: float | None = None
    rate_least: int | None = None
    missed: tuple[Literal["ttft", "rate"], ...] = ()


class Run(msgspec.Struct, frozen=True):
    """What the gateway's clock says of an ended request: seconds since it came until its first token (None: there was
    none) and until its end, and for how long it waited behind its own tenant's requests.

    `is_whole` is True where the engine wrote the answer to its end, held up by nothing but itself, `is_waived` where
    the request failed through us and delivered nothing.
    """

    waited: float
    first: float | None
    ended: float
    uncached: int
    written: int
    is_whole: bool
    is_waived: bool = False


def measured(promise: Promise, run: Run) -> Measured:
    """Return how the request did by the promise."""
    if run.is_waived:
        return Measured(promise.version, "failed")
    most, least = promise.first_within(run.uncached), promise.rate
    ttft: int | None = None
    rate: float | None = None
    missed: list[Literal["ttft", "rate"]] = []
    if most is not None:
        took = round(((run.ended if run.first is None else run.first) - run.waited) * 1000)
        if run.first is not None or took > most:
            ttft = max(took, 0)
            if ttft > most:
                missed.append("ttft")
    if least is not None and run.is_whole and run.first is not None and run.written >= max(promise.rate_from, 2):
        took = round((run.ended - run.first) * 1000)
        rate = round((run.written - 1) * 1000 / max(took, 1), 1)
        if (run.written - 1) * 1000 < least * took:
            missed.append("rate")
    why: Reason = "" if (ttft, rate) != (None, None) else "short" if run.is_whole or run.first is not None else "left"
    return Measured(
        promise.version,
        why,
        waited_ms=round(run.waited * 1000),
        uncached=run.uncached,
        ttft_ms=ttft,
        ttft_most_ms=None if ttft is None else most,
        rate=rate,
        rate_least=None if rate is None else least,
        missed=tuple(missed),
    )


def read(kept: Any) -> Measured:
    """Return what a usage record keeps."""
    return msgspec.convert(kept, Measured)


def due(price: int, credit_bp: int) -> int:
    """Return the µcr of a request's price that a miss gives back: the share, rounded up."""
    return -(-price * credit_bp // WHOLE_BP)


# -- in words ----------------------------------------------------------------------------------------------------------


class Terms(Protocol):
    """The terms of a plan's version that are about its promise."""

    promised_ttft_ms: int | None
    promised_ttft_per_1k_ms: int
    promised_rate: int | None
    promised_rate_from: int
    promise_credit_bp: int
    promise_cap: int | None


def terms_in_words(terms: Terms) -> str:
    """Return what a plan promises and what a miss gives back; "" where it promises nothing."""
    promised = []
    if terms.promised_ttft_ms is not None:
        more = terms.promised_ttft_per_1k_ms
        longer = f" and {more:,} ms for each 1,000 tokens of the prompt that aren’t cached" if more else ""
        promised.append(f"first token within {terms.promised_ttft_ms:,} ms{longer}")
    if terms.promised_rate is not None:
        promised.append(f"{terms.promised_rate:,} tokens/s in answers of {terms.promised_rate_from:,} tokens or more")
    if not promised:
        return ""
    cap = terms.promise_cap
    most = "" if cap is None else f", at most {format_credits(cap, separator=',')} credits a month"
    return f"{'; '.join(promised)}. A miss gives {terms.promise_credit_bp / 100:g} % of the charge back{most}."


def in_words(one: Measured) -> str:
    """Return what was measured, next to what was promised, or why it isn't counted."""
    if one.not_counted:
        return NOT_COUNTED[one.not_counted]
    said = []
    if one.ttft_ms is not None:
        said.append(f"first token after {one.ttft_ms:,} ms, promised within {one.ttft_most_ms:,} ms")
    if one.rate is not None:
        said.append(f"{one.rate:,.1f} tokens/s, promised {one.rate_least:,}")
    return "; ".join(said)
