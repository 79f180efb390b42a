"""A model's tokenizer and chat template: messages to prompt ids, inputs to ids, ids to text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from inference.errors import InvalidRequestError
from inference.messages import Message
from inference.text.turns import PLAIN, Rendering, Turn, rendered, values_of
from inference.types import TemplateValue


class Pair(NamedTuple):
    """Two texts as one input: the second one begins at the token `second`, 0 where the model isn't told."""

    ids: tuple[int, ...]
    second: int


class Tokenizer(Protocol):
    """A tokenizer with its chat template. One thread may encode while another one decodes."""

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a text, as the tokenizer's own files name them."""
        ...

    @property
    def template(self) -> str:
        """The chat template, the one with tools where there are several; empty without one."""
        ...

    def copy(self) -> Tokenizer:
        """Return an equal tokenizer that may encode in another thread."""
        ...

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        """Return the ids of a conversation in the model's chat template, with the header of the assistant's answer, or
        up to where its last message breaks off.

        No content produces a control token. Raise `InvalidRequestError` when the template refuses the messages.
        """
        ...

    def raw(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a prompt without a template: `special` tokens as the model's texts begin with, and control
        tokens where their text stands, since whoever writes such a prompt writes all of it.
        """
        ...

    def encode(self, text: str, limit: int = 0) -> list[int]:
        """Return the ids of one embedding input, special tokens included, cut to `limit` ids in all if that isn't 0."""
        ...

    def pair(self, first: str, second: str, limit: int = 0) -> Pair | None:
        """Return both texts as one input, the second cut where they have more than `limit` ids (0: never); None where
        the first alone has more.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without control tokens."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, that of control tokens included."""
        ...

    def written(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens as the vocabulary writes them, which isn't their text. For the thread that encodes."""
        ...

    def decoding(self, marks: Sequence[str]) -> Callable[[Sequence[int]], str]:
        """Return what decodes like `decode`, but with the control tokens whose texts are `marks`."""
        ...

    def control_ids(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the ids of those of `texts` that are control tokens."""
        ...

    def marker(self, text: str) -> tuple[int, ...]:
        """Return the ids of what a model writes as it is: one, where a token has that text."""
        ...

    def longer(self, token: int) -> frozenset[int]:
        """Return the tokens that write what `token` does and more behind it. For the thread that encodes."""
        ...

    def blank(self, space: str) -> frozenset[int]:
        """Return the tokens that write nothing but characters of `space`, or nothing at all, as control tokens do. For
        the thread that encodes.
        """
        ...

    def serialized(self) -> str | None:
        """Return it in the format of the tokenizers library, None if it has no such form. For any thread."""
        ...


class FolderTokenizer:
    """The tokenizer of a folder in transformers' layout.

    Decoding uses a copy of its own, since encoding the text of control tokens as plain text changes a setting of the
    tokenizer while it runs.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._folder = folder
        load = partial(AutoTokenizer.from_pretrained, str(folder), trust_remote_code=False)
        self._encoder: Any = load()
        backend: Any = getattr(self._encoder, "backend_tokenizer", None)
        # Copying the Rust tokenizer takes a tenth of the time of loading the folder again, which others need.
        self._rust = type(backend).from_str(backend.to_str()) if hasattr(backend, "to_str") else None
        self._decoder: Any = load() if self._rust is None else None
        self._longer: dict[int, frozenset[int]] = {}  # of the few tokens that end a marker
        self._blank: dict[str, frozenset[int]] = {}
        self._alone: dict[int, str] = {}  # the texts of single tokens that were decoded, of a vocabulary at most
        texts = sorted(
            {str(token) for token in self._encoder.added_tokens_decoder.values() if token.special}
            | set(self._encoder.all_special_tokens),
            key=len,
            reverse=True,
        )
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None
        if self._encoder.chat_template:
            # The first rendering compiles the template, which would delay the first request by half a second.
            with suppress(InvalidRequestError):
                self.prompt([Message("user", ("hello",))])

    @property
    def end_ids(self) -> frozenset[int]:
        end = self._encoder.eos_token_id
        return frozenset() if end is None else frozenset({int(end)})

    @property
    def template(self) -> str:
        if not self._encoder.chat_template:
            return ""
        return str(self._encoder.get_chat_template(tools=[{}]))

    def copy(self) -> FolderTokenizer:
        return FolderTokenizer(self._folder)

    def prompt(self, messages: Sequence[Message], rendering: Rendering = PLAIN) -> list[int]:
        for message in messages:
            if not message.role.isidentifier():  # the template renders it, so it must not hold a control token's text
                raise InvalidRequestError(f"the role {message.role!r} is unknown", param="messages")
        self._check(messages, rendering)
        texts: list[str] = []

        def note(text: str) -> str:
            texts.append(text)
            return text

        turns, values = rendered(messages, rendering, note), values_of(rendering, note)
        control = self._control
        if control is None or not any(map(control.search, texts)):
            end = _unused_marks("".join(texts), 1)[0] if rendering.continues else ""
            return self._ids(self._render(*turns, values, rendering.continues, end))
        # A text holds a control token's text. Such texts are replaced by marks, which the template leaves as they
        # are, and the rendered prompt is encoded piece by piece around them. Only in this case, because encoding each
        # text on its own would change how ordinary text is tokenised.
        left, right, end = (*_unused_marks("".join(texts), 2 + bool(rendering.continues)), "")[:3]
        found: list[str] = []

        def mark(match: re.Match[str]) -> str:
            found.append(match.group())
            return f"{left}{len(found) - 1}{right}"

        def marked(text: str) -> str:
            return control.sub(mark, text)

        turns, values = rendered(messages, rendering, marked), values_of(rendering, marked)
        text = self._render(*turns, values, rendering.continues, end)
        pieces = re.split(f"{left}(\\d+){right}", text)
        between = iter(self._all_ids([piece for piece in pieces[::2] if piece]))
        written = sorted(set(found))
        plain = dict(zip(written, self._all_ids(written, plain=True), strict=True))
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                ids += plain[found[int(piece)]]
            elif piece:
                ids += next(between)
        return ids

    def raw(self, text: str, *, special: bool = True) -> list[int]:
        return list(self._encoder(text, add_special_tokens=special, split_special_tokens=False)["input_ids"])

    def encode(self, text: str, limit: int = 0) -> list[int]:
        plain = self._control is not None and self._control.search(text) is not None
        cut = {"truncation": True, "max_length": limit} if limit else {}
        return list(self._encoder(text, add_special_tokens=True, split_special_tokens=plain, **cut)["input_ids"])

    def pair(self, first: str, second: str, limit: int = 0) -> Pair | None:
        control = self._control
        plain = control is not None and any(map(control.search, (first, second)))
        encode = partial(self._encoder, add_special_tokens=True, split_special_tokens=plain, return_token_type_ids=True)
        given = encode(first, second)
        if 0 < limit < len(given["input_ids"]):
            if len(encode(first)["input_ids"]) >= limit:
                return None
            given = encode(first, second, truncation="only_second", max_length=limit)
        kinds = list(given.get("token_type_ids") or ())
        return Pair(tuple(given["input_ids"]), kinds.index(1) if 1 in kinds else 0)

    def decode(self, ids: Sequence[int]) -> str:
        if len(ids) != 1:
            return self._decode(ids)
        # Each token of an answer is decoded alone, as what stands before the next; so are those with log-probabilities,
        # of which a long prompt has thousands in a step, for which the tokens of all would wait.
        text = self._alone.get(ids[0])
        if text is None:
            text = self._alone[ids[0]] = self._decode(ids)
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=True))
        return str(self._decoder.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def text(self, ids: Sequence[int]) -> str:
        if self._rust is not None:
            return str(self._rust.decode(list(ids), skip_special_tokens=False))
        return str(self._decoder.decode(list(ids), clean_up_tokenization_spaces=False))

    def written(self, ids: Sequence[int]) -> list[str]:
        return [str(token) for token in self._encoder.convert_ids_to_tokens(list(ids))]

    def decoding(self, marks: Sequence[str]) -> Callable[[Sequence[int]], str]:
        kept = {number: text for text, number in self.control_ids(marks).items()}
        return partial(_decoded, self.decode, kept) if kept else self.decode

    def control_ids(self, texts: Sequence[str]) -> dict[str, int]:
        added = self._encoder.added_tokens_decoder
        return {str(token): number for number, token in added.items() if token.special and str(token) in texts}

    def marker(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids(text))

    def longer(self, token: int) -> frozenset[int]:
        found = self._longer.get(token)
        if found is None:
            written = str(self._encoder.convert_ids_to_tokens(token))
            vocabulary = self._encoder.get_vocab().items()
            found = frozenset(number for text, number in vocabulary if text.startswith(written) and text != written)
            self._longer[token] = found
        return found

    def blank(self, space: str) -> frozenset[int]:
        found = self._blank.get(space)
        if found is None:  # 150,000 tokens take half a second
            numbers = list(self._encoder.get_vocab().values())
            each = [[number] for number in numbers]
            if self._rust is not None:
                texts = self._rust.decode_batch(each, skip_special_tokens=True)
            else:  # not the decoder, which is the other thread's
                plain = partial(self._encoder.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
                texts = map(plain, each)
            found = frozenset(number for number, text in zip(numbers, texts, strict=True) if not text.strip(space))
            self._blank[space] = found
        return found

    def serialized(self) -> str | None:
        return None if self._rust is None else str(self._rust.to_str())

    def _ids(self, text: str) -> list[int]:
        return list(self._encoder(text, add_special_tokens=False, split_special_tokens=False)["input_ids"])

    def _all_ids(self, texts: list[str], *, plain: bool = False) -> list[list[int]]:
        """Return the ids of each text, encoded by one call, since a call costs more than a short text's encoding."""
        if not texts:
            return []
        return list(self._encoder(texts, add_special_tokens=False, split_special_tokens=plain)["input_ids"])

    def _check(self, messages: Sequence[Message], rendering: Rendering) -> None:
        """Refuse what the template has no place for; it would leave it out without a word."""
        template = self._encoder.chat_template
        if not template:
            raise InvalidRequestError("this model has no chat template", code="no_chat_template", param="messages")
        if rendering.is_generic or rendering.writes is not None:
            return
        if any(message.has_tools for message in messages) and "tool_calls" not in str(template):
            raise InvalidRequestError(
                "this model's chat template has no place for tool calls and their results: leave them out",
                code="tools_not_supported",
                param="messages",
            )

    def _render(
        self, turns: list[Turn], tools: list[Turn], values: Mapping[str, TemplateValue], continues: str, end: str
    ) -> str:
        """Return the prompt: with the header of an answer, or where it `continues` the last turn up to its end, which
        the mark `end` shows whatever the template does to its text.
        """
        if continues:
            turns = [*turns[:-1], {**turns[-1], "content": f"{turns[-1]['content']}{end}"}]
        try:
            text = str(
                self._encoder.apply_chat_template(
                    turns, tools=tools or None, tokenize=False, add_generation_prompt=not continues, **values
                )
            )
        except Exception as error:
            # Templates refuse what their model was not trained on, such as two user turns in a row. And they are
            # programs: what a tool's schema or arguments have may be of a type that they don't expect.
            raise InvalidRequestError(f"the model's chat template refuses: {error}", param="messages") from error
        if not continues:
            return text
        text, found, _ = text.rpartition(end)
        text = text.replace(end, "")  # of a template that writes the message twice
        if not found:
            message = f"'{continues}': this model's chat template tells no message of the assistant's at the end"
            raise InvalidRequestError(message, code="unsupported_parameter", param=continues)
        return text


def _decoded(decode: Callable[[Sequence[int]], str], kept: dict[int, str], ids: Sequence[int]) -> str:
    """Return the text of `ids` with that of the control tokens `kept`."""
    if kept.keys().isdisjoint(ids):
        return decode(ids)
    texts: list[str] = []
    since = 0
    for place, token in enumerate(ids):
        if token in kept:
            texts += (decode(ids[since:place]), kept[token])
            since = place + 1
    return "".join((*texts, decode(ids[since:])))


def _unused_marks(text: str, count: int) -> list[str]:
    """Return so many private-use characters that `text` doesn't contain, looking through it once.

    Raise `InvalidRequestError` where fewer are free.
    """
    present = set(text)
    free = list(islice((mark for mark in map(chr, range(0xF0000, 0xFFFFE)) if mark not in present), count))
    if len(free) < count:
        raise InvalidRequestError(
            "the messages contain a control token's text and every character of the private-use plane U+F0000: "
            "leave one of both out",
            param="messages",
        )
    return free
