"""Refusal, when it is submitted, of a sequence that can never run."""

from __future__ import annotations

from inference.core.config import SchedulerConfig
from inference.core.sequence import Sequence
from inference.errors import InvalidRequestError
from inference.validation import check_ids, check_sampling


def check_sequence(seq: Sequence, config: SchedulerConfig) -> None:
    """Raise `InvalidRequestError` for a sequence that can never run within `config`."""
    if not seq.prompt:
        raise InvalidRequestError("the prompt is empty", param="messages")
    if seq.max_output < 1 or seq.allowance < 1:
        raise InvalidRequestError("a generation needs room for at least one token", param="max_tokens")
    if seq.known >= seq.limit:
        raise InvalidRequestError("a resumed generation needs room for one more token")
    prompt, context = len(seq.prompt), config.context
    if prompt + seq.max_output > context:
        raise InvalidRequestError(
            f"{prompt} prompt tokens and {seq.max_output} output tokens exceed the context of {context}",
            code="context_length_exceeded",
            param="max_tokens",
        )
    if min(seq.tokens) < 0 or max(seq.tokens) >= config.vocab_size:
        check_ids(seq.tokens, config.vocab_size, "messages")
    check_sampling(seq.sampling, config.vocab_size, config.eos_ids)
