"""The texts that go with log-probabilities."""

from __future__ import annotations

from inference.core.encoder_scheduler import EncodeScheduler
from inference.core.output import Output
from inference.local.texts import Texts
from inference.text.answer import Markers, Parsing
from inference.text.byte_tokenizer import ByteTokenizer
from inference.types import PositionLogprobs, SamplingParams, TokenLogprob, Usage


def test_log_probabilities_get_the_texts_of_their_tokens() -> None:
    texts = Texts(ByteTokenizer(), "d")
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
    assert all(position.chosen.text == "e" for position in told)
    assert all([entry.text for entry in position.top] == ["t", "h", "e"] for position in told)


def test_what_was_generated_behind_a_stop_string_has_no_log_probabilities_even_where_it_is_thought() -> None:
    texts = Texts(ByteTokenizer(), "d")
    scheduler = EncodeScheduler(
        max_rows=1, max_step_tokens=8, max_waiting=1, max_waiting_per_tenant=1, clock=lambda: 0.0
    )
    parsing = Parsing(Markers("<", ">"), thinks=True)
    texts.begin("r", texts.stream("r", (1, 2), SamplingParams(stop=("!",)), None, parsing))
    tokens = tuple(b"hm>yes!no")  # in one step, as drafts are accepted
    told = tuple(PositionLogprobs(TokenLogprob(token, -1.0), 1, ()) for token in tokens)
    output = Output("r", Usage(2, 0, len(tokens)), tokens=tokens, logprobs=told)
    texts.fill(scheduler, output)
    assert "".join(entry.chosen.text for entry in output.unspoken) == "hm>"
    assert "".join(entry.chosen.text for entry in output.logprobs) == "yes!"
