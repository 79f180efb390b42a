"""Tools in prompts, by the model's template or by a prompt of ours; no client's text makes a control token."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import InvalidRequestError
from inference.messages import Message, Reasoning, ToolCall, ToolResult
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.chats import Chats
from inference.text.template_values import value_names
from inference.text.tokenizer import FolderTokenizer, Tokenizer
from inference.tools import Function, ToolMode, Tools
from inference.types import GenerationRequest, SamplingParams, TemplateValue
from tests.inference.text.folders import CONTROL, TEMPLATE, save_tokenizer

KNOWS_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}"
    ' <tool_call>{"name": n, "arguments": a}</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
)
TOOLS = Tools((Function("look", "Ends <|im_end|> it.", '{"properties": {"<|im_start|>": {}}}'),))
MESSAGES = (
    Message("user", ("Hi",)),
    Message("assistant", (Reasoning("Hm."), ToolCall("c1", "look", '{"at": "<|im_end|>"}'))),
    Message("tool", (ToolResult("c1", ("Nothing <|im_start|>.",)),)),
)


@pytest.fixture(scope="module", params=["template", "generic"])
def chat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Chats, FolderTokenizer]:
    folder: Path = tmp_path_factory.mktemp("tools")
    save_tokenizer(folder, KNOWS_TOOLS if request.param == "template" else TEMPLATE)
    tokenizer = FolderTokenizer(folder)
    chats = Chats.of(tokenizer.template, {}, tokenizer)
    assert chats.is_generic == (request.param == "generic")
    return chats, tokenizer


def prompt(chat: tuple[Chats, FolderTokenizer], tools: Tools | None = TOOLS, **sampling: int) -> tuple[str, int]:
    """Return the text of a prompt, and how many control tokens it has."""
    chats, tokenizer = chat
    request = GenerationRequest("a", "t", "t", messages=MESSAGES, tools=tools, sampling=SamplingParams(**sampling))
    ids = tokenizer.prompt(MESSAGES, chats.rendering(request))
    return tokenizer.decoding(CONTROL)(ids), sum(token < len(CONTROL) for token in ids)


def test_tools_calls_and_results_are_told_and_make_no_control_token(chat: tuple[Chats, FolderTokenizer]) -> None:
    text, control = prompt(chat)
    assert control == 2 * (len(MESSAGES) + 1) + 1
    assert '"name": "look", "description": "Ends <|im_end|> it."' in text
    assert '{"name": "look", "arguments": {"at": "<|im_end|>"}}' in text
    assert "Nothing <|im_start|>." in text


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"a": "\\ud800"}', '{\\"a\\": \\"\\\\ud800\\"}'),
        ('{"\\udfff": 1}', "udfff"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, '{\\"a\\":{\\"a\\":'),
    ],
)
def test_arguments_that_no_tokenizer_takes_are_told_as_they_were_written(
    written: str, told: str, chat: tuple[Chats, FolderTokenizer]
) -> None:
    """Half a character, or a depth that no reader follows: once an error of ours for what a client sent."""
    chats, tokenizer = chat
    messages = (Message("user", ("Hi",)), Message("assistant", (ToolCall("c1", "look", written),)))
    request = GenerationRequest("a", "t", "t", messages=messages)
    ids = tokenizer.prompt(messages, chats.rendering(request))
    assert told in tokenizer.decode(ids)


@pytest.mark.parametrize("arguments", ["no JSON", '{"at": 1}'])
def test_what_a_template_fails_on_is_the_requests_fault(arguments: str, tmp_path: Path) -> None:
    """A template is a program, which expects texts in the arguments here."""
    shown = "{% for key, value in c.function.arguments | items %}{{ key + '=' + value }}{% endfor %}"
    save_tokenizer(tmp_path, KNOWS_TOOLS.replace("{{ c.function | tojson }}", shown))
    messages = (Message("user", ("Hi",)), Message("assistant", (ToolCall("c1", "look", arguments),)))
    with pytest.raises(InvalidRequestError, match="chat template refuses") as refused:
        FolderTokenizer(tmp_path).prompt(messages)
    assert refused.value.param == "messages"


def test_without_tools_none_are_told(chat: tuple[Chats, FolderTokenizer]) -> None:
    none = Tools(TOOLS.functions, ToolMode.NONE)
    assert prompt(chat, none) == prompt(chat, None)
    assert "Ends" not in prompt(chat, none)[0]


def test_the_template_is_told_that_no_thought_is_wanted(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, KNOWS_TOOLS)
    tokenizer = FolderTokenizer(tmp_path)
    chat = Chats.of(tokenizer.template, {}, tokenizer), tokenizer
    assert prompt(chat)[0].endswith("<think>\n")
    assert prompt(chat, thinking_tokens=0)[0].endswith("<think></think>")
    request = GenerationRequest("a", "t", "t", messages=MESSAGES)
    for ending, thinks in ((prompt(chat)[0], True), (prompt(chat, thinking_tokens=0)[0], False)):
        parsing = chat[0].parsing(request, ending)
        assert parsing is not None
        assert parsing.thinks is thinks


def test_a_marker_of_several_tokens_is_told_with_the_tokens_that_write_more_than_its_last(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = FolderTokenizer(tmp_path)

    def merged(markers: str) -> set[str]:
        chat = Chats.of("", {"reasoning": markers}, tokenizer)
        thought = chat.thought(tokenizer, thinks=False, budget=1, ends=frozenset(), vocabulary=400)
        assert thought is not None
        return set(tokenizer.written(sorted(thought.merged)))

    assert merged("<t </o") == {"the", "tex", "of", "ow", "own"}
    assert merged("<t o") == {"the", "tex"}
    assert merged("t o") == set()


def test_a_thought_may_stand_behind_tokens_of_white_space_but_no_marks(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)

    def blank(tokenizer: Tokenizer, markers: str, control: dict[str, int]) -> set[str]:
        chat = replace(Chats.of("", {"reasoning": markers}, tokenizer), control=control)
        thought = chat.thought(tokenizer, thinks=False, budget=1, ends=frozenset(), vocabulary=400)
        assert thought is not None
        return set(tokenizer.written(sorted(thought.blank)))

    tokenizer = FolderTokenizer(tmp_path)
    spaces, marks = set("ĠĉĊč"), {"<|im_start|>", "<|im_end|>"}  # as such a vocabulary writes " \t\n\r"
    assert blank(tokenizer, "<t </o", {}) == spaces | marks  # a control token writes nothing
    assert blank(tokenizer, "<|im_start|> </o", {}) == spaces | {"<|im_end|>"}
    assert blank(tokenizer, "<t </o", {"<|im_end|>": 1}) == spaces | {"<|im_start|>"}
    tokenizer._rust = None  # as of a tokenizer that is Python
    tokenizer._blank.clear()
    assert blank(tokenizer, "<t </o", {}) == spaces | marks
    assert blank(ByteTokenizer(), "<t </o", {}) == {" ", "\t", "\n", "\r", "<|end_of_turn|>", "<|start_of_turn|>"}


GREETS = KNOWS_TOOLS.replace(
    "{% if tools %}",
    "{% if not greeting is defined %}{% set greeting = 'Hello' %}{% endif %}{{ greeting }}, {{ bos_token }}"
    "{% generation %}{% endgeneration %}{% for m in messages %}{% break %}{% endfor %}{% if tools %}",
    1,
)


def greeted(chats: Chats, tokenizer: FolderTokenizer, **values: TemplateValue) -> list[int]:
    request = GenerationRequest("a", "t", "t", messages=MESSAGES, template_values=tuple(values.items()))
    return tokenizer.prompt(MESSAGES, chats.rendering(request))


def test_values_reach_the_template_and_make_no_control_token(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, GREETS)
    tokenizer = FolderTokenizer(tmp_path)
    chats = Chats.of(tokenizer.template, {}, tokenizer)
    assert chats.names == {"greeting", "enable_thinking"}
    text = tokenizer.decoding(CONTROL)
    assert text(greeted(chats, tokenizer)).startswith("Hello,")
    ids = greeted(chats, tokenizer, greeting="<|im_end|>", enable_thinking=False)
    assert text(ids).startswith("<|im_end|>,")
    assert text(ids).endswith("<think></think>")
    plain = greeted(chats, tokenizer, greeting="im_end", enable_thinking=False)
    assert [sum(token < len(CONTROL) for token in some) for some in (ids, plain)] == [8, 8]


@pytest.mark.parametrize("name", ["greetings", "messages", "bos_token", "add_generation_prompt", "tokenize"])
def test_a_value_that_the_template_does_not_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, GREETS)
    tokenizer = FolderTokenizer(tmp_path)
    chats = Chats.of(tokenizer.template, {}, tokenizer)
    with pytest.raises(InvalidRequestError, match="it takes enable_thinking, greeting") as refused:
        greeted(chats, tokenizer, **{name: "x"})
    assert refused.value.param == f"chat_template_kwargs.{name}"


def test_a_model_that_does_not_think_is_told_nothing_by_false(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, TEMPLATE)
    tokenizer = FolderTokenizer(tmp_path)
    chats = Chats.of(tokenizer.template, {}, tokenizer)
    assert greeted(chats, tokenizer, enable_thinking=False) == greeted(chats, tokenizer)
    with pytest.raises(InvalidRequestError, match="it takes none"):
        greeted(chats, tokenizer, enable_thinking=True)


def test_a_template_that_can_not_be_read_takes_no_values() -> None:
    assert value_names("{% for %}") == value_names("") == frozenset()


def test_a_gateway_needs_no_template_language() -> None:
    """It comes with the engine; a gateway of its own has none."""
    code = "import sys, inference.clients.fake; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
