"""What a row carries for its sampling: the tokens so far if they count, and the ids that would end it."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequestError
from inference.types import SamplingParams
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


def test_the_engines_door_refuses_what_sampling_cannot_do() -> None:
    bench = Bench()
    with pytest.raises(InvalidRequestError) as caught:
        bench.submit("bad", sampling=SamplingParams(logit_bias=((97, 1.0),)))
    assert caught.value.param == "logit_bias"
    assert not bench.scheduler.unfinished
