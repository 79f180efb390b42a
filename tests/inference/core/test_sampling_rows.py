"""What a row carries for its sampling: the tokens so far if they count, and the ids that would end it."""

from __future__ import annotations

import pytest

from inference.core.resident import Cause
from inference.core.step import RowResult, StepPlan, StepResult
from inference.errors import InvalidRequestError
from inference.types import PositionLogprobs, SamplingParams, TokenLogprob
from tests.inference.core.driving import Bench


def test_rows_carry_history_and_ends_only_where_they_are_used() -> None:
    bench = Bench(eos_ids=frozenset({3}))
    bench.submit("plain")
    counting = bench.submit(
        "counting", sampling=SamplingParams(presence_penalty=1.0, min_tokens=2, stop_token_ids=(9,))
    )
    bench.submit("deaf", sampling=SamplingParams(min_tokens=2, ignore_eos=True))
    bench.run()
    rows = [row for plan in bench.plans for row in plan.rows]
    seen = {row.request_id: (row.history, row.banned) for row in rows}
    assert seen["plain"] == ((), ())
    assert seen["counting"][0] is counting.tokens
    assert seen["counting"][1] == (3, 9)
    assert seen["deaf"] == ((), ())


def scored(plan: StepPlan) -> StepResult:
    """An answer to each row, with the log-probabilities that it asks for."""
    entries = [tuple(PositionLogprobs(TokenLogprob(token, -1.0), 1) for token in row.targets) for row in plan.rows]
    return StepResult(
        tuple(RowResult((7,) if row.samples else (), (), told) for row, told in zip(plan.rows, entries, strict=True))
    )


def test_a_prompt_token_is_told_once_though_a_preempted_prompt_is_computed_again_in_other_chunks() -> None:
    bench = Bench(prefill_chunk=5, max_step_tokens=8)
    bench.submit("other", 5, 2)
    seq = bench.submit("r", 14, 2, sampling=SamplingParams(prompt_logprobs=0))
    told: list[int] = []
    chunks: list[int] = []
    while (plan := bench.plan()) is not None:
        for output in bench.scheduler.commit(plan, scored(plan)):
            told += [entry.chosen.token for entry in output.prompt_logprobs]
        bench.scheduler.check()
        chunks += [row.count for row in plan.rows if row.request_id == "r"]
        if len(chunks) == 1:
            bench.scheduler._residents.preempt(seq, Cause.BLOCKS)
    assert chunks[:2] == [3, 5]
    assert told == list(range(1, 14))


def test_the_engines_door_refuses_what_sampling_cannot_do() -> None:
    bench = Bench()
    with pytest.raises(InvalidRequestError) as caught:
        bench.submit("bad", sampling=SamplingParams(logit_bias=((97, 1.0),)))
    assert caught.value.param == "logit_bias"
    assert not bench.scheduler.unfinished
