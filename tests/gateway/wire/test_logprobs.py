"""The log-probabilities of our own engine, as Completions has them, stand beside the text that they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.generation.items import Narrator
from gateway.wire.logprobs import completion_logprobs
from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.types import Delta
from tests.inference.engine_contract import chat
from tests.inference.tiny import save_tiny

LETTERS = tuple(b"abcdef")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = save_tiny("llama", tmp_path_factory.mktemp("tiny"))
    spec = EngineConfig("d", str(folder), dtype="float32", kv_tokens=1024)
    return LocalEngine(spec, load_model(spec, threads=1), ByteTokenizer())


@pytest.mark.parametrize("echo", [False, True])
def test_tokens_and_offsets_are_the_texts_own(engine, echo):
    prompt_logprobs = 2 if echo else None
    sampling = {"logprobs": 2, "prompt_logprobs": prompt_logprobs, "echo": echo, "max_tokens": 5, "seed": 1}
    request = chat("", allowed_token_ids=LETTERS, **sampling)
    engine.submit(engine.prepare(replace(request, messages=(), prompt="xyz")))
    narrator = Narrator()
    while engine.unfinished:
        for output in engine.step():
            narrator.take(
                Delta(output.text, output.usage, logprobs=output.logprobs, prompt_logprobs=output.prompt_logprobs)
            )
    [answer] = narrator.answers
    assert answer.text.startswith("xyz") is echo
    told = completion_logprobs(answer.text, answer.logprobs, answer.prompt_logprobs)
    assert told.tokens == list(answer.text)
    assert told.text_offset == list(range(8 if echo else 5))
    assert [logprob is None for logprob in told.token_logprobs[:2]] == [echo, False]
    assert [top is None for top in told.top_logprobs[:2]] == [echo, False]
