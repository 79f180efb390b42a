"""The options of a fake engine: what it answers, and where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    LimitedError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)

REFUSALS: dict[str, type[EngineError]] = {
    "invalid": InvalidRequestError,
    "overloaded": OverloadedError,
    "limited": LimitedError,
    "draining": DrainingError,
    "unprepared": UnpreparedError,
    "unreachable": UnreachableError,
}


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """The keys of `EngineSpec.options`. Token numbers count the output from 1.

    `text` is the answer (one token per word) or, when empty, `tokens` numbered words; with `ignore_eos` it repeats.
    With a `script` it is the one whose number is that of the tools' results in the messages, the last where there are
    more: `<tool_call>` opens a call of a function that the request has, and `<think>` a thought if it `thinks`.
    Guided requests are refused, unless it `guides`: then `text` has to be what they permit, which it doesn't check.
    With `echo` the answer is the last message, and a message that begins with `bad` fails its row.
    `adapters` are those that requests may name; the answer is the same with them. `refused_adapters` have the reason.
    `images` is ``none``, ``data`` or ``urls``; an image takes no tokens.
    `cached` is the fraction of a prompt that comes from the cache. `prompt_rule` is ``characters`` (one token per
    four) or ``words``. `prepare_error` and `generate_error` are keys of `REFUSALS`. `error_at`, `lose_at` and
    `hang_at` name the token before which a request fails, loses its worker, or waits for `FakeEngine.release`;
    0 is never. With `unreachable`, `prepare` and `usage_of` raise `UnreachableError`. Times are in seconds;
    `delay` comes before each token.
    """

    model: str = "fake"
    kinds: Sequence[str] = ("chat", "embedding", "score", "classification")
    images: str = "none"
    adapters: Sequence[str] = ()
    refused_adapters: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    script: Sequence[str] = ()
    thinks: bool = False
    echo: bool = False
    bad: str = ""
    guides: bool = False
    tokens: int = 16
    tokens_per_delta: int = 1
    delay: float = 0.0
    cached: float = 0.0
    prompt_rule: str = "characters"
    max_context: int = 8192
    vector_width: int = 8
    pause_seconds: float = 2.0
    prepared_seconds: float = 30.0
    prepare_error: str = ""
    generate_error: str = ""
    error_at: int = 0
    lose_at: int = 0
    hang_at: int = 0
    unreachable: bool = False
    ready: bool = True

    def count(self, text: str) -> int:
        """The number of tokens of `text` by the `prompt_rule`."""
        return len(text.split()) if self.prompt_rule == "words" else -(-len(text) // 4)

    def pieces(self, text: str) -> list[str]:
        """The tokens of `text` by the `prompt_rule`."""
        return text.split() if self.prompt_rule == "words" else [text[at : at + 4] for at in range(0, len(text), 4)]
