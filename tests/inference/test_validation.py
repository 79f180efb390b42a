"""What a request may ask of sampling: each bound names its field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from inference.errors import InvalidRequestError
from inference.types import SamplingParams
from inference.validation import check_sampling

VOCABULARY = 100
ENDS = frozenset({7})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", math.nan),
        ("stop", ("x",) * 65),
        ("stop", ("x" * 1001,)),
        ("stop_token_ids", (100,)),
        ("stop_token_ids", (1,) * 257),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -math.inf),
        ("logit_bias", ((100, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("logit_bias", tuple((i, 0.0) for i in range(1025))),
        ("allowed_token_ids", (5, 100)),
        ("allowed_token_ids", (5, 5)),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("n", 0),
        ("n", 17),
        ("best_of", 0),
    ],
)
def test_a_value_out_of_range_is_refused_and_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_sampling(SamplingParams(**{field: value}), VOCABULARY, ENDS)
    assert caught.value.param == field
    assert field in caught.value.message or "token id" in caught.value.message


def test_bounds_between_fields() -> None:
    for bad, field in (
        (SamplingParams(max_tokens=3, min_tokens=4), "min_tokens"),
        (SamplingParams(n=3, best_of=2), "best_of"),
        (SamplingParams(min_tokens=1, allowed_token_ids=(7, 8), stop_token_ids=(8,)), "allowed_token_ids"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            check_sampling(bad, VOCABULARY, ENDS)
        assert caught.value.param == field


def test_an_end_that_is_ignored_is_a_token_like_any_other() -> None:
    check_sampling(SamplingParams(min_tokens=1, allowed_token_ids=(7,), ignore_eos=True), VOCABULARY, ENDS)


def test_what_fits_passes() -> None:
    check_sampling(
        SamplingParams(
            max_tokens=9, min_tokens=9, temperature=0.0, logit_bias=((0, -100.0), (99, 100.0)), logprobs=20,
            prompt_logprobs=0, allowed_token_ids=(7, 9), n=2, best_of=16, repetition_penalty=0.5, presence_penalty=-2.0,
        ),
        VOCABULARY,
        ENDS,
    )  # fmt: skip
