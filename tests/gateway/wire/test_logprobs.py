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


def answers_of(engine, text, **sampling):
    """What a client would be told: the answers of the prompt `text`."""
    sampling = {"logprobs": 2, "max_tokens": 5, "seed": 1, "allowed_token_ids": LETTERS, **sampling}
    request = chat("", **sampling)
    engine.submit(engine.prepare(replace(request, messages=(), prompt=text)))
    narrator = Narrator(request.sampling.n)
    while engine.unfinished:
        for output in engine.step():
            narrator.take(
                Delta(
                    output.text,
                    output.usage,
                    logprobs=output.logprobs,
                    prompt_logprobs=output.prompt_logprobs,
                    index=output.index,
                )
            )
    return narrator.answers


@pytest.mark.parametrize(("n", "best_of"), [(1, None), (3, None), (2, 4)])
@pytest.mark.parametrize("prompt", [None, "xyz", "aaaa", "x", "a"])
def test_tokens_and_offsets_are_the_texts_own(engine, prompt, n, best_of):
    """Of each answer, as each begins with the prompt: of one token too, and of tokens that the answer repeats."""
    echoes = {"prompt_logprobs": 2, "echo": True} if prompt else {}
    answers = answers_of(engine, prompt or "xyz", n=n, best_of=best_of, **echoes)
    assert len(answers) == n
    assert len({answer.text for answer in answers}) == n
    before = len(prompt or "")
    for answer in answers:
        assert answer.text.startswith(prompt or "")
        told = completion_logprobs(answer.text, answer.logprobs, answers[0].prompt_logprobs if prompt else None)
        assert told.tokens == list(answer.text)
        assert told.text_offset == list(range(before + 5))
        assert [logprob is None for logprob in told.token_logprobs] == [bool(prompt), *[False] * (before + 4)][
            -before - 5 :
        ]
        assert [top is None for top in told.top_logprobs[:2]] == [bool(prompt), False]
        assert (
            told.token_logprobs[:before]
            == completion_logprobs("", (), answers[0].prompt_logprobs).token_logprobs[:before]
        )


def test_an_answer_may_be_its_prompts_only_letter(engine):
    [answer] = answers_of(engine, "aaa", allowed_token_ids=(97,), prompt_logprobs=0, echo=True)
    told = completion_logprobs(answer.text, answer.logprobs, answer.prompt_logprobs)
    assert told.tokens == ["a"] * 8
    assert told.text_offset == list(range(8))


def test_a_stop_string_that_leaves_nothing_moves_no_offset(engine):
    [answer] = answers_of(engine, "xy", stop=tuple("abcdef"), prompt_logprobs=0, echo=True)
    assert answer.text == "xy"
    told = completion_logprobs(answer.text, answer.logprobs, answer.prompt_logprobs)
    assert told.tokens[:2] == ["x", "y"]
    assert told.text_offset[:2] == [0, 1]


def test_a_character_of_several_tokens_hides_no_text_before_it(engine):
    [answer] = answers_of(engine, "xé", prompt_logprobs=0, echo=True)
    told = completion_logprobs(answer.text, answer.logprobs, answer.prompt_logprobs)
    assert told.tokens[:3] == ["", "\ufffd", "\ufffd"]  # a token's text is told where it can be known
    [answer] = answers_of(engine, "xyé", prompt_logprobs=0, echo=True)
    told = completion_logprobs(answer.text, answer.logprobs, answer.prompt_logprobs)
    assert told.tokens[:4] == ["x", "y", "\ufffd", "\ufffd"]
    assert told.tokens[4:] == list(answer.text[3:])
