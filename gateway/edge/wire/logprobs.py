"""Log-probabilities as clients see them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inference.types import PositionLogprobs, TokenLogprob

LEAST = -9999.0  # what OpenAI's API says of a token that can't be; JSON has no infinity


class TopLogprob(msgspec.Struct):
    """A token, its text's bytes where it is whole characters, and its natural log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(msgspec.Struct):
    """The token that was chosen at one position, and the most probable ones there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The log-probabilities of a choice's text."""

    content: list[TokenLogprobs]
    refusal: None = None


def token_logprobs(entries: Sequence[PositionLogprobs]) -> list[TokenLogprobs]:
    """Return `entries` in the shape that Chat Completions and Responses share."""
    return [
        TokenLogprobs(
            entry.chosen.text, floored(entry.chosen.logprob), _bytes(entry.chosen), [_top(token) for token in entry.top]
        )
        for entry in entries
    ]


def floored(logprob: float) -> float:
    """Return a log-probability as JSON has it."""
    return max(logprob, LEAST)


def _top(token: TokenLogprob) -> TopLogprob:
    return TopLogprob(token.text, floored(token.logprob), _bytes(token))


def _bytes(token: TokenLogprob) -> list[int] | None:
    return None if "\ufffd" in token.text else list(token.text.encode())
