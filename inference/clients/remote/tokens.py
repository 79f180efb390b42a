"""How many tokens a prompt has, as the server's tokenizer says, or as its length makes likely."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inference.messages import Image
from inference.types import Tokens

PER_MESSAGE = 8  # tokens that a chat template adds to each message, and once more for the answer's head
UNSEEN = 128  # tokens that it may say by itself: a date, a default system message
_BYTES = 3  # at least so many to a token in nearly all text: more tokens than that are unlikely
_MOST_BYTES = 6  # and fewer than that, too
_FAR_BYTES = 32  # more bytes than the tokens of a whole answer have on average
_BETWEEN = 256  # tokens without text that stand between those of an answer: marks of thought and of calls
LEAST_IMAGE = 64  # tokens that an image has at least in common models
USUAL_IMAGE = 576  # what a small one has in models that give each the same size
IMAGE_PATCH = 16  # pixels along the side of the smallest patch that common models make a token of
_MOST = 1 << 31  # more tokens than anything has


def number(value: Any) -> int | None:
    """Return a count that a server sent, None for anything that can't be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


@dataclass(frozen=True, slots=True)
class Count:
    """`tokens` to hold credit for; the prompt has at least `least`, which is the same where the count is exact.

    Of `tokens`, `unseen` are for what the prompt may have beside what was sent.
    """

    tokens: int
    least: int
    unseen: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether the server counted it as it will run it."""
        return self.tokens == self.least

    @property
    def likely(self) -> int:
        """Tokens charged where the server never says how many the prompt has."""
        return (self.tokens - self.unseen + self.least) // 2

    def plus_image(self, image: Image, most: int) -> Count:
        """Return this and an image's tokens: one for each 16 by 16 pixels, at least 576, at most `most`, which one of
        unknown size is taken to have.
        """
        patches = -(-image.width // IMAGE_PATCH) * -(-image.height // IMAGE_PATCH)
        tokens = min(max(patches, USUAL_IMAGE), most) if patches else most
        return Count(self.tokens + tokens, self.least + min(LEAST_IMAGE, tokens - 1), self.unseen)

    def plus(self, known: int) -> Count:
        """Return this and `known` tokens more."""
        return Count(self.tokens + known, self.least + known, self.unseen)


def templated(tokens: int, least: int, messages: int) -> Count:
    """Return the count of a chat whose texts have so many tokens, with what its template adds."""
    return Count(tokens + PER_MESSAGE * (messages + 1) + UNSEEN, least, UNSEEN)


def estimated(texts: Iterable[str], *, template: bool) -> Count:
    """Return an estimate from the texts' lengths; with `template` they are messages of a chat."""
    sizes = [len(text.encode()) for text in texts]
    tokens, least = -(-sum(sizes) // _BYTES), max(1, sum(sizes) // _MOST_BYTES)
    return templated(tokens, least, len(sizes)) if template else Count(tokens + 2 * len(sizes), least)


def counted(answer: Any) -> Count | None:
    """Return the exact `count` of a tokenizer's answer, None where it has none."""
    count = number(answer.get("count")) if isinstance(answer, dict) else None
    return None if count is None else Count(count, count)


def tokens_in(answer: Any) -> Tokens | None:
    """Return the tokens of a tokenizer's answer, with their texts where it has them; None for anything else."""
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or any(number(token) is None for token in ids):
        return None
    texts = answer.get("token_strs")
    return Tokens(tuple(ids), tuple(map(str, texts)) if isinstance(texts, list) else ())


def text_in(answer: Any, name: str) -> str | None:
    """Return the text `name` of a detokenizer's answer, None for anything else."""
    text = answer.get(name) if isinstance(answer, dict) else None
    return text if isinstance(text, str) else None


def surely_of(size: int) -> int:
    """Return how many tokens an output of `size` bytes has at least, whatever it says."""
    return -(-size // _FAR_BYTES)


def most_of(size: int) -> int:
    """Return how many tokens an output of `size` bytes has at most: none has less than a byte but for marks."""
    return size + _BETWEEN


def densest(tokens: int) -> int:
    """Return how many tokens a prompt may have that was held for as so many: one for each of its bytes."""
    return _BYTES * tokens


def least_of(size: int) -> int:
    """Return how many tokens an output of `size` bytes has at least, nearly always."""
    return -(-size // _MOST_BYTES)
