"""Prompts that are counted and not run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from base.ids import uuid7
from billing.limits.types import Bucket
from gateway.errors.refusal import Refusal
from gateway.generation.counting import MOST_AT_ONCE, count, counting
from tests.gateway.doubles import make_intent, make_stand


async def test_a_count_is_what_would_run_and_costs_nothing():
    stand = await make_stand()
    counted = await count(stand.runtime, stand.principal, make_intent(), uuid7())
    assert (counted.prepared.prompt_tokens, counted.model) == (100, "fake")
    assert (counted.headers["x-ratelimit-remaining-requests"], counted.headers["x-sluice-model"]) == ("59", "fake")
    assert stand.writer.operations == []
    assert stand.engine._prepared == {}  # forgotten at once
    assert stand.places() == 0
    assert len(counting) == 0
    load = stand.runtime.engines.load(stand.runtime.catalogue.snapshot.catalogue.deployments["fake"][0].replicas[0].id)
    assert load == 0


async def test_counts_are_limited_by_rate_and_number():
    stand = await make_stand()
    bucket = Bucket("{t}:requests", "requests", 1, 60_000_000, 1)
    principal = replace(stand.principal, request_bucket=bucket)
    await count(stand.runtime, principal, make_intent(), uuid7())
    with pytest.raises(Refusal) as caught:
        await count(stand.runtime, principal, make_intent(), uuid7())
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    with counting.share(stand.principal.tenant) as take:
        take(MOST_AT_ONCE)
        with pytest.raises(Refusal) as caught:
            await count(stand.runtime, stand.principal, make_intent(), uuid7())
    assert (caught.value.status, caught.value.code) == (429, "concurrency_limit_exceeded")


async def test_what_can_not_run_is_refused():
    stand = await make_stand(max_context=50)
    with pytest.raises(Refusal) as caught:
        await count(stand.runtime, stand.principal, make_intent(), uuid7())
    assert caught.value.code == "context_length_exceeded"
    assert stand.places() == 0
