"""A deployment's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence

from inference.architectures.fake import load_fake_model
from inference.config import EngineConfig
from inference.messages import Message
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.turns import PLAIN, Rendering
from inference.worker.deployment import Deployment
from tests.inference.engine_contract import chat


class Copied(ByteTokenizer):
    """A tokenizer that counts how often it was copied."""

    def __init__(self) -> None:
        self.copies = 0
        self.encoded = 0

    def copy(self) -> ByteTokenizer:
        self.copies += 1
        return ByteTokenizer()

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        self.encoded += 1
        return super().prompt(messages)


def test_a_second_tokenizer_is_made_at_load_and_a_third_when_two_encode() -> None:
    spec = EngineConfig("d", "fake", architecture="fake")
    tokenizer = Copied()
    deployment = Deployment(spec, load_fake_model(spec), tokenizer, secret=b"s", pause_seconds=2.0, clock=lambda: 0.0)
    assert tokenizer.copies == 1
    second = deployment.prepare(chat("hi"), own_tokenizer=False)
    assert tokenizer.encoded == 0, "a tokenizer encodes for one thread only"
    assert second.ids == deployment.prepare(chat("hi")).ids
    assert tokenizer.encoded > 0
    assert tokenizer.copies == 1
    with deployment._encoding(False) as one, deployment._encoding(False) as other:
        assert one is not other
        assert tokenizer.copies == 2
    deployment.prepare(chat("hi"), own_tokenizer=False)
    assert tokenizer.copies == 2
