"""The costs and savings of an engine's memory, batches and cache, in words for operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from uuid import UUID

from gateway.runtime.data_plane import DeploymentState
from inference.types import BOUNDS, Histogram, Work
from tenancy.models import Tenant

MOST_TENANTS = 10
_WHY = {
    "blocks": "for want of memory",
    "paused": "while their credit was being extended",
    "fairness": "since another tenant had less than its share",
    "memory": "since a step ran out of memory",
}


def lines_of(state: DeploymentState) -> list[tuple[str, str]]:
    """Return what an engine of ours did since it was loaded, as titles and sentences; none for engines of others."""
    work = state.work
    if work is None or not work.steps:
        return []
    lines = [("Batch", _batch(work))]
    if work.output_tokens:
        lines = [("K/V memory", _memory(state, work)), *lines, ("Prefix cache", _cache(work))]
    if work.queued.total:
        lines.append(("Times", _times(work)))
    return lines


def tenants_of(work: Work) -> list[list[str]]:
    """Return the tenants that had most of the device: name, seconds, and their part of all that it worked."""
    most = sorted(work.tenants.items(), key=lambda item: -item[1])[:MOST_TENANTS]
    names = _names([tenant for tenant, _ in most])
    whole = work.seconds or 1.0  # no time at all, by a clock that is coarse
    return [[names.get(tenant, tenant), f"{spent:,.1f} s", f"{spent / whole:.0%}"] for tenant, spent in most]


def _memory(state: DeploymentState, work: Work) -> str:
    free = max(0.0, 1 - state.kv_used - state.kv_cached)
    size = f" ({state.details['kv']})" if "kv" in state.details else ""
    said = (
        f"Of the memory for conversations{size}, {state.kv_used:.0%} is held by requests, {state.kv_cached:.0%} keeps "
        f"prompts for reuse and {free:.0%} is empty."
    )
    causes = {cause: number for cause, number in work.preemptions.items() if number}
    if not causes:
        return f"{said} No request ever had to give up its place."
    why = ", ".join(f"{number:,} {_WHY.get(cause, cause)}" for cause, number in causes.items())
    more = " More memory (kv_tokens) makes that rarer." if causes.get("blocks") else ""
    return f"{said} Requests gave up their place and were computed again from what was cached: {why}.{more}"


def _batch(work: Work) -> str:
    said = (
        f"A step computes {work.rows / work.steps:,.1f} requests on average and takes "
        f"{1000 * work.seconds / work.steps:,.1f} ms, which they share: the fuller the step, the less each costs."
    )
    decoding = work.seconds - work.prefill_seconds
    if work.output_tokens and decoding > 0:
        said += f" It generated {work.output_tokens / decoding:,.0f} tokens a second of decoding"
        if work.prefill_seconds > 0:
            said += f" and read {work.prompt_tokens / work.prefill_seconds:,.0f} prompt tokens a second of prefill"
        said += "."
    return said


def _cache(work: Work) -> str:
    prompts = work.prompt_tokens + work.cached_tokens
    if not work.cached_tokens:
        return f"None of {prompts:,} prompt tokens had been computed before."
    saved = work.cached_tokens * work.prefill_seconds / max(1, work.prompt_tokens)
    return (
        f"Of {prompts:,} prompt tokens, {work.cached_tokens / prompts:.0%} were taken from the cache instead of being "
        f"computed: about {saved:,.1f} s of this device saved, beside {work.seconds:,.1f} s that it worked. Tenants "
        f"pay the lower rate for them, and nothing for those of a request's further answers."
    )


def _times(work: Work) -> str:
    half, most = _within(work.queued)
    said = f"Half of the requests waited {half} for their first step, and all but one in a hundred {most}."
    if work.first_tokens.total:
        half, most = _within(work.first_tokens)
        said += f" Half had their first token {half} after they came here, all but one in a hundred {most}."
    if work.gaps.total:
        half, most = _within(work.gaps)
        said += f" Half of the tokens came {half} after the one before them, all but one in a hundred {most}."
    return said


def _within(durations: Histogram) -> tuple[str, str]:
    """Say what half of the durations don't exceed, and all but one in a hundred."""
    return _at_most(durations.percentile(0.5)), _at_most(durations.percentile(0.99))


def _at_most(seconds: float | None) -> str:
    if seconds is None or math.isinf(seconds):
        return f"more than {BOUNDS[-1]:g} s"
    return f"at most {seconds:g} s" if seconds >= 1 else f"at most {1000 * seconds:g} ms"


def _names(identifiers: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for identifier in identifiers:
        try:
            found[UUID(identifier)] = identifier
        except ValueError:
            continue
    return {found[pk]: tenant.name for pk, tenant in Tenant.objects.in_bulk(list(found)).items()}
