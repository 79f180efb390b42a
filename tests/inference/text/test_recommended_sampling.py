"""Sampling fields that a client doesn't set: the operator's recommendation, else the model's own."""

import json
from dataclasses import replace

import pytest

from inference.architectures.fake import load_fake_model
from inference.config import EngineConfig
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import recommended_sampling
from inference.types import GenerationRequest, SamplingParams


def test_unset_fields_take_the_recommendation():
    sampling = SamplingParams(top_p=0.5, unset=("temperature", "min_p"))
    completed = sampling.with_recommended({"temperature": 0.2, "top_p": 0.9})
    assert completed == SamplingParams(temperature=0.2, top_p=0.5)


def test_only_sampling_fields_of_generation_config_are_read(tmp_path):
    assert recommended_sampling(tmp_path) == {}
    stated = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2, "top_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert recommended_sampling(tmp_path) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("value", [-1, "hot", True, float("nan"), float("inf"), [1], None])
def test_a_checkpoints_value_that_cannot_be_meant_is_left_out(tmp_path, value):
    """Else each request that doesn't set the field would be refused for what its client never said."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": value, "top_k": value, "min_p": 0.1}))
    assert recommended_sampling(tmp_path) == {"min_p": 0.1}


def test_an_operator_can_recommend_only_sampling():
    with pytest.raises(ValueError, match="sampling has no 'seed'"):
        EngineConfig("d", "x", sampling={"seed": 1})


def test_prepared_chats_carry_the_operators_recommendation():
    config = EngineConfig("d", "fake", architecture="fake", sampling={"temperature": 0.25})
    tokenizer = ByteTokenizer()
    served = LocalEngine(config, load_fake_model(config), tokenizer, secret=b"s", clock=lambda: 0.0)
    request = GenerationRequest("r", "t", "t", messages=(Message("user", ("hi",)),))
    for sampling, expected in ((SamplingParams(unset=("temperature",)), 0.25), (SamplingParams(temperature=0.9), 0.9)):
        prompt = served.prepare(replace(request, sampling=sampling))
        assert prompt.request.sampling.temperature == expected
