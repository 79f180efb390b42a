"""A model's tokenizer and chat template: messages to prompt ids, inputs to ids, ids to text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from inference.errors import InvalidRequestError
from inference.types import Message


class Tokenizer(Protocol):
    """What a worker needs of a tokenizer. Used by one thread for encoding and by one for decoding."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a text, as the tokenizer's own files name them."""
        ...

    def copy(self) -> Tokenizer:
        """Return an equal tokenizer that may encode in another thread."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation in the model's template, open for the assistant's next turn.

        No content can produce a control token. Raises `InvalidRequestError` where the template refuses.
        """
        ...

    def encode(self, text: str, limit: int = 0) -> list[int]:
        """The ids of one embedding input, with what the model puts around it, cut to `limit` ids in all if not 0."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens left out."""
        ...


class FolderTokenizer:
    """The tokenizer of a folder in transformers' layout.

    Encoding and decoding may run in two threads: decoding uses a copy of its own, since encoding control-token texts
    as plain text flips a switch inside the tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._folder = folder
        load = partial(AutoTokenizer.from_pretrained, str(folder), trust_remote_code=False)
        self._encoder: Any = load()
        backend: Any = getattr(self._encoder, "backend_tokenizer", None)
        # A copy in Rust costs a tenth of loading the folder again, which only tokenizers without Rust need.
        self._rust = type(backend).from_str(backend.to_str()) if hasattr(backend, "to_str") else None
        self._decoder: Any = load() if self._rust is None else None
        texts = sorted(
            {str(token) for token in self._encoder.added_tokens_decoder.values() if token.special}
            | set(self._encoder.all_special_tokens),
            key=len,
            reverse=True,
        )
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        if self._encoder.chat_template:
            # The first rendering compiles the template, for half a second: not on somebody's first request.
            with suppress(InvalidRequestError):
                self.prompt([Message("user", "hello")])

    @property
    def end_ids(self) -> frozenset[int]:
        end = self._encoder.eos_token_id
        return frozenset() if end is None else frozenset({int(end)})

    def copy(self) -> FolderTokenizer:
        return FolderTokenizer(self._folder)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        for message in messages:
            if not message.role.isidentifier():  # it is rendered too, and must not bring control tokens in either
                raise InvalidRequestError(f"the role {message.role!r} is unknown", param="messages")
        contents = [message.content for message in messages]
        if self._control is None or not any(self._control.search(content) for content in contents):
            return self._ids(self._render([message.role for message in messages], contents))
        # A control token's text stands in a content. Such texts are replaced by marks that the template carries
        # through, and the rendered prompt is encoded piece by piece around them; only here, because encoding every
        # content on its own would change how ordinary text is cut into tokens.
        left, right = _unused_marks("".join(contents))
        found: list[str] = []

        def mark(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{left}{len(found) - 1}{right}"

        marked = [self._control.sub(mark, content) for content in contents]
        rendered = self._render([message.role for message in messages], marked)
        pieces = re.split(f"{left}(\\d+){right}", rendered)
        between = iter(self._all_ids([piece for piece in pieces[::2] if piece]))
        texts = sorted(set(found))
        plain = dict(zip(texts, self._all_ids(texts, plain=True), strict=True))
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                ids += plain[found[int(piece)]]
            elif piece:
                ids += next(between)
        return ids

    def encode(self, text: str, limit: int = 0) -> list[int]:
        plain = self._control is not None and self._control.search(text) is not None
        cut = {"truncation": True, "max_length": limit} if limit else {}
        return list(self._encoder(text, add_special_tokens=True, split_special_tokens=plain, **cut)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=True))
        return str(self._decoder.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _ids(self, text: str) -> list[int]:
        return list(self._encoder(text, add_special_tokens=False, split_special_tokens=False)["input_ids"])

    def _all_ids(self, texts: list[str], *, plain: bool = False) -> list[list[int]]:
        """Return the ids of each text, encoded by one call, since a call costs more than a short text's encoding."""
        if not texts:
            return []
        return list(self._encoder(texts, add_special_tokens=False, split_special_tokens=plain)["input_ids"])

    def _render(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        from jinja2 import TemplateError

        if not self._encoder.chat_template:
            raise InvalidRequestError("this model has no chat template", code="no_chat_template", param="messages")
        turns = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        try:
            return str(self._encoder.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            # Templates refuse what their model was not trained on, such as two user turns in a row.
            raise InvalidRequestError(f"the model's chat template refuses: {error}", param="messages") from error


def _unused_marks(text: str) -> tuple[str, str]:
    """Return two private-use characters that `text` doesn't contain, looking through it once.

    Raise `InvalidRequestError` where fewer than two are free.
    """
    present = set(text)
    free = list(islice((mark for mark in map(chr, range(0xF0000, 0xFFFFE)) if mark not in present), 2))
    if len(free) < 2:
        raise InvalidRequestError(
            "the messages contain a control token's text and every character of the private-use plane U+F0000: "
            "leave one of both out",
            param="messages",
        )
    return free[0], free[1]
