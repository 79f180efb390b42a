"""The texts that go with log-probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inference.core.encoder_scheduler import EncodeScheduler
from inference.core.output import Output
from inference.local.texts import Texts
from inference.text.byte_tokenizer import ByteTokenizer
from inference.types import PositionLogprobs, SamplingParams, TokenLogprob, Usage


class Counting(ByteTokenizer):
    """Counts how often it decoded what."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded: Counter[tuple[int, ...]] = Counter()

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded[tuple(ids)] += 1
        return super().decode(ids)


def test_each_token_of_the_log_probabilities_is_decoded_once_for_all_requests() -> None:
    tokenizer = Counting()
    texts = Texts(tokenizer, "d")
    scheduler = EncodeScheduler(
        max_rows=1, max_step_tokens=8, max_waiting=1, max_waiting_per_tenant=1, clock=lambda: 0.0
    )
    told = []
    for name in "ab":
        texts.begin(name, texts.stream(name, (1, 2), SamplingParams(), None))
        top = tuple(TokenLogprob(token, -2.0) for token in b"the")
        position = PositionLogprobs(TokenLogprob(ord("e"), -1.0), 1, top)
        output = Output(name, Usage(), prompt_logprobs=(position,) * 50)
        texts.fill(scheduler, output)
        told += output.prompt_logprobs
    assert {tokenizer.decoded[token,] for token in b"the"} == {1}
    assert all(position.chosen.text == "e" for position in told)
    assert all([entry.text for entry in position.top] == ["t", "h", "e"] for position in told)
