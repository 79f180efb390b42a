"""The formats in which models write calls of functions: one declaration each, from which calls are read and held.

objects       <tool_call>{"name": "f", "arguments": {…}}</tool_call>            or a list of such objects
JSON          <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
parameters    <tool_call><function=f><parameter=city>Oslo</parameter></function></tool_call>
Python        <|tool_call_start|>[f(city="Oslo", days=3)]<|tool_call_end|>
bare keys     <|tool_call>call:f{city:<|"|>Oslo<|"|>,days:3}<tool_call|>
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

_MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|\]<\]\w+\[>\[")
STRING = "{string}"  # in a format: "true" where the value of a parameter is a text, else "false"
INDEX = "{index}"  # in a format: the number of the call
ID = "{id}"  # in what stands before a call: an id that the model makes


class Body(Enum):
    """How a call tells its name and its arguments."""

    OBJECTS = auto()  # an object in JSON with both, or a list of such
    JSON = auto()  # the name, and then an object in JSON
    PARAMETERS = auto()  # the name, and then each argument between markers: texts as they are, all else in JSON
    PYTHON = auto()  # the name, and then arguments as Python's keywords
    BARE_KEYS = auto()  # the name, and then an object whose keys have no quotes, and its texts quotes of their own


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A format. White space in its texts may be more or less in an answer.

    A call stands between `begin` and `end`, `between` stands between two calls, and the `section` around all of a turn.
    `middle` stands between a call's name and its arguments. `keys` are the names of an object's name and arguments,
    empty where the object's one key is the name; `extra` stands before them, and `brackets` around a list of objects.
    `parameter` stands before an argument's name, before its value and behind that; `quote` stands around texts.

    Calls stand behind one of the `openers` (by default the first word of the format), or one of `begins` opens them at
    the very beginning of an answer. `silent` are texts around the parts of an answer that belong to none of them: one
    behind another part begins with the first, and text with the second of `leads`. `thought` stands before and behind a
    thought. `identify` makes the id that the template wants of a call's id, its
    name and its number in the chat.
    """

    name: str
    body: Body
    begin: str = ""
    end: str = ""
    middle: str = ""
    between: str = "\n"
    section: tuple[str, str] = ("", "")
    keys: tuple[str, str] = ("name", "arguments")
    brackets: tuple[str, str] = ("", "")
    extra: str = ""
    parameter: tuple[str, str, str] = ("", "", "")
    quote: str = ""
    begins: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    leads: tuple[str, str] = ("", "")
    thought: tuple[str, str] | None = None
    identify: Callable[[str, str, int], str] | None = None

    def __post_init__(self) -> None:
        if not self.openers and not self.begins:
            object.__setattr__(self, "openers", (self.first.split()[0],))

    @property
    def first(self) -> str:
        """The text that stands before the first call."""
        return self.section[0] or self.begin

    @property
    def marks(self) -> tuple[str, ...]:
        """Parts of the format's texts that may be control tokens of which a reader needs the text."""
        texts = (self.begin, self.end, self.middle, *self.section, *self.parameter, self.quote, *self.openers)
        return marks_in(*texts, *self.silent, "[CALL_ID]")  # Mistral's, before its arguments


def shaped(text: str) -> list[str]:
    """Return what in `text` has the shape of a control token."""
    return _MARK.findall(text)


def marks_in(*texts: str) -> tuple[str, ...]:
    """Return what in `texts` may be a control token: each whole one, and what has the shape of one."""
    found = (mark for text in texts for mark in (text, *shaped(text)))
    return tuple(dict.fromkeys(filter(None, found)))


def _short(identifier: str, name: str, number: int) -> str:
    """Nine letters and digits: Mistral's templates insist on them, Solar's ask for ten at most."""
    return hashlib.blake2b(identifier.encode(), digest_size=8).hexdigest()[:9]


def _numbered(identifier: str, name: str, number: int) -> str:
    """The name with its number, which Kimi's templates tell as the call's name."""
    return f"functions.{name}:{number}"


def _deepseek_markup(name: str, section: str) -> CallFormat:
    return CallFormat(
        name,
        Body.PARAMETERS,
        begin='<｜DSML｜invoke name="',
        middle='">\n',
        parameter=('<｜DSML｜parameter name="', f'" string="{STRING}">', "</｜DSML｜parameter>\n"),
        end="</｜DSML｜invoke>\n",
        between="",
        section=(f"<｜DSML｜{section}>\n", f"</｜DSML｜{section}>"),
    )


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

_ALL = (
    CallFormat("hermes", Body.OBJECTS, begin="<tool_call>\n", end="\n</tool_call>"),
    CallFormat(
        "llama3",
        Body.OBJECTS,
        between="; ",
        keys=("name", "parameters"),
        begins=("{",),
        openers=("<|python_tag|>",),
    ),
    CallFormat("mistral", Body.OBJECTS, begin="[TOOL_CALLS]", brackets=("[", "]"), between=", ", identify=_short),
    CallFormat("mistral-args", Body.JSON, begin="[TOOL_CALLS]", middle="[ARGS]", between="", identify=_short),
    CallFormat(
        "qwen3-coder",
        Body.PARAMETERS,
        begin="<tool_call>\n<function=",
        middle=">\n",
        parameter=("<parameter=", ">\n", "\n</parameter>\n"),
        end="</function>\n</tool_call>",
    ),
    CallFormat(
        "seed-oss",
        Body.PARAMETERS,
        begin="<seed:tool_call>\n<function=",
        middle=">\n",
        parameter=("<parameter=", ">", "</parameter>\n"),
        end="</function>\n</seed:tool_call>",
    ),
    CallFormat(
        "glm",
        Body.PARAMETERS,
        begin="<tool_call>",
        middle="\n",
        parameter=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        end="</tool_call>",
    ),
    CallFormat(
        "hunyuan3",
        Body.PARAMETERS,
        begin="<tool_call:opensource>",
        middle="<tool_sep:opensource>\n",
        parameter=(
            "<arg_key:opensource>",
            "</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        ),
        end="</tool_call:opensource>",
        section=("<tool_calls:opensource>\n", "\n</tool_calls:opensource>"),
        thought=("<think:opensource>", "</think:opensource>"),
    ),
    CallFormat(
        "minimax-m2",
        Body.PARAMETERS,
        begin='<invoke name="',
        middle='">\n',
        parameter=('<parameter name="', '">', "</parameter>\n"),
        end="</invoke>\n",
        between="",
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
    CallFormat(
        "deepseek-v3",
        Body.JSON,
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        middle="\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        section=_DEEPSEEK,
    ),
    CallFormat(
        "deepseek-v3.1",
        Body.JSON,
        begin="<｜tool▁call▁begin｜>",
        middle="<｜tool▁sep｜>",
        end="<｜tool▁call▁end｜>",
        between="",
        section=_DEEPSEEK,
    ),
    _deepseek_markup("deepseek-v3.2", "function_calls"),
    _deepseek_markup("deepseek-v4", "tool_calls"),
    CallFormat(
        "kimi",
        Body.JSON,
        begin="<|tool_call_begin|>functions.",
        middle=f":{INDEX}<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        between="",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        identify=_numbered,
    ),
    CallFormat(
        "harmony",
        Body.JSON,
        begin="<|channel|>commentary to=functions.",
        middle=" <|constrain|>json<|message|>",
        openers=(" to=functions.",),
        silent=(
            "<|start|>assistant",
            "<|channel|>final",
            "<|channel|>commentary",
            "<|message|>",
            "<|end|>",
            "<|call|>",
        ),
        leads=("<|start|>assistant", "<|channel|>final<|message|>"),
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
    ),
    CallFormat(
        "solar",
        Body.JSON,
        begin=f"<|tool_call:begin|>{ID}<|tool_call:name|>",
        middle="<|tool_call:args|>",
        end="<|tool_call:end|>",
        between="",
        section=("<|tool_calls|>", "<|calls|>"),
        silent=("<|begin|>assistant", "<|content|>", "<|end|>"),
        leads=("<|begin|>assistant", "<|content|>"),
        thought=("<|think|>", "<|end|>"),
        identify=_short,
    ),
    CallFormat(
        "gemma4", Body.BARE_KEYS, begin="<|tool_call>call:", middle="{", end="}<tool_call|>", between="", quote='<|"|>'
    ),
    CallFormat(
        "function-gemma",
        Body.BARE_KEYS,
        begin="<start_function_call>call:",
        middle="{",
        end="}<end_function_call>",
        between="",
        quote="<escape>",
    ),
    CallFormat("phi4", Body.OBJECTS, begin="<|tool_call|>", end="<|/tool_call|>", between=""),
    CallFormat("granite", Body.OBJECTS, begin="<|tool_call|>", brackets=("[", "]"), between=", "),
    CallFormat("granite-20b", Body.OBJECTS, begin="<function_call> ", openers=("<function_call>",)),
    CallFormat("nemotron", Body.OBJECTS, begin="<TOOLCALL>", end="</TOOLCALL>", brackets=("[", "]"), between=", "),
    CallFormat(
        "tool-calls", Body.OBJECTS, begin="<tool_calls>", end="</tool_calls>", brackets=("[", "]"), between=", "
    ),
    CallFormat(
        "cohere",
        Body.OBJECTS,
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
        brackets=("[\n    ", "\n]"),
        between=",\n    ",
        extra=f'"tool_call_id": "{INDEX}", ',
        keys=("tool_name", "parameters"),
    ),
    CallFormat(
        "apertus",
        Body.OBJECTS,
        begin="<|tools_prefix|>",
        end="<|tools_suffix|>",
        brackets=("[", "]"),
        between=", ",
        keys=("", ""),
    ),
    CallFormat("internlm", Body.OBJECTS, begin="<|action_start|><|plugin|>\n", end="<|action_end|>", between=""),
    CallFormat(
        "gigachat3",
        Body.OBJECTS,
        begin="<|message_sep|>\n\nfunction call<|role_sep|>\n",
        openers=("function call<|role_sep|>",),
        silent=("<|message_sep|>",),
    ),
    CallFormat("gigachat", Body.OBJECTS, begin="<|function_call|>"),
    CallFormat("functionary", Body.JSON, begin="<function=", middle=">", end="</function>", between=""),
    CallFormat(
        "lfm2",
        Body.PYTHON,
        middle="(",
        end=")",
        between=", ",
        section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        openers=("<|tool_call_start|>",),
    ),
    CallFormat("olmo3", Body.PYTHON, middle="(", end=")", section=("<function_calls>\n", "\n</function_calls>")),
    CallFormat("pythonic", Body.PYTHON, middle="(", end=")", between=", ", section=("[", "]"), begins=("[",)),
)
FORMATS: Mapping[str, CallFormat] = {found.name: found for found in _ALL}
GENERIC = FORMATS["hermes"]
