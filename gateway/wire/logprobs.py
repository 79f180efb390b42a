"""Log-probabilities as clients see them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from inference.types import PositionLogprobs, SamplingParams, TokenLogprob

LONGEST_TOKEN = 256  # characters: some vocabularies have that many spaces in one
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


class PromptToken(msgspec.Struct):
    """One token that might stand at a position of the prompt, as vLLM has it."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]


class CompletionLogprobs(msgspec.Struct):
    """The log-probabilities of a choice's tokens, as Completions has them, and where in its text each begins."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


def completion_logprobs(
    text: str,
    entries: Sequence[PositionLogprobs],
    prompt: Sequence[PositionLogprobs] | None = None,
    *,
    offset: int = 0,
) -> CompletionLogprobs:
    """Return the `entries` of a choice's `text`, which begins with an echoed prompt unless `prompt` is None.

    `prompt` are the entries of its tokens but the first. That one has no log-probability; its text is what stands
    before the others'.
    """
    told = CompletionLogprobs([], [], [], [])
    if prompt is not None:
        first = _first_token(text, prompt, entries)
        told.text_offset.append(offset)
        told.tokens.append(first)
        told.token_logprobs.append(None)
        told.top_logprobs.append(None)
        offset += len(first)
    for entry in (*(prompt or ()), *entries):
        told.text_offset.append(offset)
        told.tokens.append(entry.chosen.text)
        told.token_logprobs.append(floored(entry.chosen.logprob))
        told.top_logprobs.append({token.text: floored(token.logprob) for token in (*entry.top, entry.chosen)})
        offset += len(entry.chosen.text)
    return told


def _first_token(text: str, prompt: Sequence[PositionLogprobs], entries: Sequence[PositionLogprobs]) -> str:
    """Return what stands in `text` before the tokens of `prompt` and the `entries`, whose last ones it may lack.

    A stop string cuts the text, and a character of several tokens is in none of their texts: they are compared up to
    the first such token. Where that leaves nothing to go by, the first token is told without its text.
    """
    begin = "".join(entry.chosen.text for entry in prompt).partition("\ufffd")[0]
    known, unknown, _ = "".join(entry.chosen.text for entry in (*prompt, *entries)).partition("\ufffd")
    compared = len(known) if unknown else len(text)
    for end in range(min(len(text) - len(begin), LONGEST_TOKEN) + 1):
        if known.startswith(text[end : end + compared]):
            return text[:end]
    return ""


def prompt_logprobs(sampling: SamplingParams, entries: Sequence[PositionLogprobs]) -> PromptLogprobs | UnsetType:
    """Return, where they were asked for, the tokens at each position of the prompt by their ids: the one that stands
    there, and the most probable ones. The first position has none.
    """
    if sampling.prompt_logprobs is None:
        return UNSET
    return [None, *map(_position, entries)]


def _position(entry: PositionLogprobs) -> dict[str, PromptToken]:
    tokens = {str(token.token): (rank, token) for rank, token in enumerate(entry.top, 1)}
    tokens[str(entry.chosen.token)] = (entry.rank, entry.chosen)
    return {name: PromptToken(floored(token.logprob), rank, token.text) for name, (rank, token) in tokens.items()}


def floored(logprob: float) -> float:
    """Return a log-probability as JSON has it."""
    return max(logprob, LEAST)


def _top(token: TokenLogprob) -> TopLogprob:
    return TopLogprob(token.text, floored(token.logprob), _bytes(token))


def _bytes(token: TokenLogprob) -> list[int] | None:
    return None if "\ufffd" in token.text else list(token.text.encode())
