"""What an engine takes and refuses when it prepares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inference.architectures.fake import load_fake_model
from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.errors import InvalidRequestError
from inference.local.engine import LocalEngine
from inference.messages import Image, Message
from inference.text.byte_tokenizer import VOCABULARY, ByteTokenizer
from inference.text.chats import Chats
from inference.text.prepare import CHARACTERS_PER_TOKEN, PIECE
from inference.text.turns import PLAIN, Rendering
from inference.types import Kind
from tests.inference.engine_contract import chat, embedding


def serve(**config: Any) -> LocalEngine:
    spec = EngineConfig("d", "fake", **{"architecture": "fake", **config})
    return LocalEngine(spec, load_fake_model(spec), ByteTokenizer(), secret=b"s", clock=lambda: 0.0)


@pytest.fixture(scope="module")
def chatting() -> LocalEngine:
    return serve(kv_tokens=256)


@pytest.fixture(scope="module")
def encoding() -> LocalEngine:
    return serve(options={"kinds": ["embedding"], "max_context": 16})


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("x" * 1001,)}, "stop"),
        ({"stop": tuple(f"{number}." for number in range(65))}, "stop"),
        ({"stop_token_ids": (258,)}, "stop_token_ids"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_sampling_out_of_range_is_refused(chatting: LocalEngine, sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chatting.prepare(chat("hi", **sampling))
    assert caught.value.param == param


def test_the_output_is_bounded_by_max_tokens_and_by_the_context(chatting: LocalEngine) -> None:
    prompt = chatting.prepare(chat("hi"))
    assert prompt.max_output == 256 - prompt.tokens
    assert chatting.prepare(chat("hi", max_tokens=7)).max_output == 7
    assert chatting.prepare(chat("hi", max_tokens=10_000)).max_output == 256 - prompt.tokens


def test_the_log_probabilities_that_best_of_holds_back_are_bounded(
    chatting: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave in one frame, and one that is too large ends all requests of its gateway."""
    monkeypatch.setattr("inference.validation.MAX_HELD_LOGPROBS", 2 * 10 * 3)
    held = {"n": 2, "best_of": 3, "logprobs": 2, "max_tokens": 10}
    chatting.prepare(chat("hi", **held))
    for more in ({"max_tokens": 11}, {"logprobs": 3}, {"n": 3, "best_of": 4}, {"max_tokens": None}):
        with pytest.raises(InvalidRequestError) as caught:
            chatting.prepare(chat("hi", **{**held, **more}))
        assert caught.value.param == "best_of"
    for free in ({"best_of": 2}, {"best_of": None}, {"logprobs": None}):  # sent as they come, or not at all
        chatting.prepare(chat("hi", **{**held, "max_tokens": 100, **free}))


def test_the_longest_prompt_leaves_room_for_one_token(chatting: LocalEngine) -> None:
    frame = chatting.prepare(chat("")).tokens
    assert chatting.prepare(chat("x" * (255 - frame))).max_output == 1
    with pytest.raises(InvalidRequestError) as caught:
        chatting.prepare(chat("x" * (256 - frame)))
    assert caught.value.code == "context_length_exceeded"


def test_block_keys_are_rooted_in_the_domain(chatting: LocalEngine) -> None:
    request = chat("a prompt of several blocks, long enough")
    keys = chatting.prepare(request).keys
    assert len(keys) == chatting.prepare(request).tokens // 16
    assert chatting.prepare(replace(request, id="other")).keys == keys
    assert not set(chatting.prepare(replace(request, domain="other")).keys) & set(keys)


@pytest.mark.parametrize("begun", ["Ho", "Ho <think>"])
def test_a_message_that_is_gone_on_with_ends_the_prompt_and_is_no_thought(chatting: LocalEngine, begun: str) -> None:
    request = replace(chat("Hi"), messages=(Message("user", ("Hi",)), Message("assistant", (begun,))))
    whole, prompt = chatting.prepare(request), chatting.prepare(replace(request, continues="continue_final_message"))
    assert whole.ids[: len(prompt.ids)] == prompt.ids
    assert ByteTokenizer().decode(prompt.ids).endswith(begun)
    chats = Chats.of("", {"reasoning": "<think> </think>"})
    for continues, thinks in (("continue_final_message", False), ("", "think" in begun)):
        parsing = chats.parsing(replace(request, continues=continues), begun)
        assert parsing is not None
        assert parsing.thinks is thinks


@pytest.mark.parametrize(("prompt", "ids"), [("a<b", (97, 60, 98)), ((7, 8), (7, 8))])
def test_a_raw_prompt_gets_no_template(chatting: LocalEngine, prompt: Any, ids: tuple[int, ...]) -> None:
    assert chatting.prepare(replace(chat(""), messages=(), prompt=prompt)).ids == ids


@pytest.mark.parametrize(
    ("prompt", "says"),
    [("", "empty"), ((), "empty"), ((300,), "vocabulary"), ("x" * 256, "256 tokens"), ((1,) * 256, "256 tokens")],
)
def test_raw_prompts_that_a_model_cannot_take(chatting: LocalEngine, prompt: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        chatting.prepare(replace(chat(""), messages=(), prompt=prompt))
    assert caught.value.param == "prompt"


def test_a_model_of_ours_takes_no_images(chatting: LocalEngine) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chatting.prepare(replace(chat(""), messages=(Message("user", ("Look:", Image("data:"))),)))
    assert (caught.value.code, caught.value.param) == ("images_not_supported", "messages")


@pytest.mark.parametrize("request_", [replace(chat("x"), messages=()), replace(chat("x"), weight=0), embedding("x")])
def test_what_a_chat_model_cannot_serve(chatting: LocalEngine, request_: Any) -> None:
    with pytest.raises(InvalidRequestError):
        chatting.prepare(request_)


@pytest.mark.parametrize("inputs", [(), ((),), ((300,),), ((-1,),), ("x" * 16,), ((1,) * 17,)])
def test_inputs_that_an_encoder_cannot_take(encoding: LocalEngine, inputs: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        encoding.prepare(embedding(*inputs))
    assert caught.value.param == "input"


def test_long_inputs_are_cut_when_asked(encoding: LocalEngine) -> None:
    prompt = encoding.prepare(embedding("x" * 40, tuple(range(40)), "short", truncate=True))
    assert [len(item) for item in prompt.inputs] == [16, 16, 6]
    assert prompt.inputs[0][-1] == encoding.tokenizer.encode("")[-1]
    assert prompt.inputs[1] == tuple(range(16))
    assert prompt.max_output == 0


def test_engine_info_has_the_deployments_limits(chatting: LocalEngine, encoding: LocalEngine) -> None:
    assert chatting.info.kinds == {Kind.CHAT}
    assert (chatting.info.max_context, chatting.info.block_size) == (256, 16)
    assert encoding.info.kinds == {Kind.EMBEDDING}
    assert (encoding.info.max_input, encoding.info.vector_width) == (16, 8)


def test_what_can_never_fit_is_refused_before_it_is_encoded(
    chatting: LocalEngine, encoding: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encoded(*_: object) -> None:
        raise AssertionError("encoded")

    monkeypatch.setattr(ByteTokenizer, "prompt", encoded)
    with pytest.raises(InvalidRequestError) as caught:
        chatting.prepare(chat("x" * (CHARACTERS_PER_TOKEN * 256)))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    monkeypatch.setattr(ByteTokenizer, "encode", encoded)
    text = "x" * (CHARACTERS_PER_TOKEN * 16 + 1)
    with pytest.raises(InvalidRequestError) as caught:
        encoding.prepare(embedding(text))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    monkeypatch.undo()
    assert encoding.prepare(replace(embedding(text), truncate=True)).tokens == 16


class Measured(ByteTokenizer):
    """A tokenizer that knows how much it was given, and for which white space is nothing."""

    def __init__(self) -> None:
        self.characters = 0

    def raw(self, text: str, *, special: bool = True) -> list[int]:
        self.characters += len(text)
        return super().raw("".join(text.split()))

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        return [ids for message in messages for text in message.texts for ids in self.raw(text)]

    def encode(self, text: str, limit: int = 0) -> list[int]:
        return self.raw(text)[: limit or None]


@pytest.mark.parametrize("text", ["😀" * 280_000, "x" * 1_000_000, " " * 20_000 + "x" * 1_000_000])
@pytest.mark.parametrize("kind", ["chat", "prompt", "input", "cut", "pair"])
def test_a_text_costs_what_can_be_taken_of_it(kind: str, text: str) -> None:
    """A megabyte that no context holds was tokenised as a whole, and other tenants' prompts waited for it."""
    tokenizer = Measured()
    kinds = {"chat": "chat", "prompt": "chat", "pair": "score"}.get(kind, "embedding")
    spec = EngineConfig("d", "fake", architecture="fake", options={"kinds": [kinds], "max_context": 256})
    engine = LocalEngine(spec, load_fake_model(spec), tokenizer, secret=b"s", clock=lambda: 0.0)
    asked = {
        "chat": chat(text),
        "prompt": replace(chat(""), messages=(), prompt=text),
        "pair": replace(embedding(text), kind=Kind.SCORE, queries=("which?",)),
    }.get(kind, embedding(text, truncate=kind == "cut"))
    if kind == "cut":
        assert engine.prepare(asked).tokens == 256
    else:
        with pytest.raises(InvalidRequestError, match="characters, more than") as refused:
            engine.prepare(asked)
        assert refused.value.code == "context_length_exceeded"
    assert tokenizer.characters <= 2 * (20_000 + 2 * PIECE)


def test_a_long_text_of_few_tokens_is_taken() -> None:
    spec = EngineConfig("d", "fake", architecture="fake", kv_tokens=256)
    engine = LocalEngine(spec, load_fake_model(spec), Measured(), secret=b"s", clock=lambda: 0.0)
    assert engine.prepare(chat("x" + " " * 30_000 + "y")).tokens == 2


class Foreign(ByteTokenizer):
    """A tokenizer with one token more than its model, and an end of its own."""

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({7})

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        return [*super().prompt(messages), VOCABULARY]

    def encode(self, text: str, limit: int = 0) -> list[int]:
        return [*super().encode(text, limit), VOCABULARY]


@pytest.mark.parametrize(("kind", "param"), [("chat", "messages"), ("embedding", "input")])
def test_tokens_that_the_model_never_got_are_refused(kind: str, param: str) -> None:
    spec = EngineConfig("d", "fake", architecture="fake", options={"kinds": [kind]})
    model = load_fake_model(spec)
    engine = LocalEngine(spec, model, Foreign(), secret=b"s", clock=lambda: 0.0)
    with pytest.raises(InvalidRequestError, match=str(VOCABULARY)) as caught:
        engine.prepare(chat("hi") if kind == "chat" else embedding("hi"))
    assert caught.value.param == param


def test_the_tokenizers_end_counts_beside_the_models() -> None:
    spec = EngineConfig("d", "fake", architecture="fake")
    model = load_fake_model(spec)
    engine = LocalEngine(spec, model, Foreign(), secret=b"s", clock=lambda: 0.0)
    (scheduler,) = engine.schedulers
    assert isinstance(scheduler, Scheduler)
    assert scheduler.config.eos_ids == model.eos_ids | {7}
