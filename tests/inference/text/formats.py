"""Models of one format of calls: what their template writes, and what their answers are held to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inference.messages import Message, ToolCall
from inference.text.call_formats import FORMATS, shaped
from inference.text.chats import Chats
from inference.text.tokenizer import FolderTokenizer
from inference.tools import Function, ToolMode, Tools
from inference.types import GenerationRequest
from tests.inference.text.call_templates import template_of
from tests.inference.text.folders import CONTROL, save_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": ["number", "null"]},
        "is_so": {"type": "boolean"},
        "more": {"type": "object"},
        "list": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
    },
}
TOOLS_GIVEN = Tools((
    Function("look.up-2", "Looks.", json.dumps(SCHEMA)),
    Function("nothing", "Does nothing."),
))  # fmt: skip
Chat = tuple[Chats, FolderTokenizer]


def saved(name: str, folder: Path) -> Chat:
    """Return a model of one format, whose marks are control tokens."""
    marks = dict.fromkeys(mark for text in FORMATS[name].marks for mark in shaped(text))
    save_tokenizer(folder, template_of(name), list(marks))
    tokenizer = FolderTokenizer(folder)
    return Chats.of(tokenizer.template, {}, tokenizer), tokenizer


def told(chat: Chat, messages: Sequence[Message]) -> str:
    """Return the text of a prompt as the reader of an answer sees it."""
    chats, tokenizer = chat
    request = GenerationRequest("a", "t", "t", messages=tuple(messages), tools=TOOLS_GIVEN)
    parsing = chats.parsing(request, "")
    assert parsing is not None
    ids = tokenizer.prompt(messages, chats.rendering(request))
    return tokenizer.decoding((*parsing.marks, *CONTROL))(ids)


def written(chat: Chat, text: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return what the template writes of an answer: what a model writes."""
    made = tuple(ToolCall(f"call{n}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
    header, turn = (
        "<|im_start|>assistant\n",
        told(chat, [Message("user", ("Hi",)), Message("assistant", (text, *made))]),
    )
    begin, end = turn.index(header) + len(header), turn.rindex("<|im_end|>\n<|im_start|>assistant")
    return turn[begin:end]


def matcher(chat: Chat, schema: dict[str, Any]) -> Callable[[str], bool]:
    """Return what says whether an answer that has to call a function may be a text."""
    from inference.guidance.library import Vocabulary, text_of

    chats, tokenizer = chat
    functions = (Function("look.up-2", "Looks.", json.dumps(schema)), TOOLS_GIVEN.functions[1])
    guidance = chats.guidance(GenerationRequest("a", "t", "t", tools=Tools(functions, ToolMode.REQUIRED)))
    assert guidance is not None
    serialized = tokenizer.serialized()
    assert serialized is not None
    end = next(iter(tokenizer.end_ids))
    grammar = Vocabulary(serialized, 0, frozenset({end})).compile(text_of(guidance))

    def matches(text: str) -> bool:
        matching = grammar.begin()
        for token in (*tokenizer.raw(text.removesuffix("<|call|>"), special=False), end):  # that ends a whole answer
            if not matching.mask()[token // 8] >> token % 8 & 1:
                return False
            if token != end:
                matching.accept(token)
        return True

    return matches
