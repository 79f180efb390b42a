"""The form of a model's chats: how its calls of functions are rendered and read, and where its thought stands."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.errors import InvalidRequestError
from inference.guidance.schemas import loosened_guidance
from inference.guidance.thinking import Thought
from inference.text.answer import Markers, Parsing
from inference.text.call_formats import FORMATS, GENERIC, CallFormat
from inference.text.call_reader import SPACE
from inference.text.parameter_kinds import kinds_of
from inference.text.recognition import recognised
from inference.text.tokenizer import Tokenizer
from inference.text.tool_grammars import framed, guidance_of_tools
from inference.text.turns import Rendering
from inference.tools import ToolMode, Tools
from inference.types import GenerationRequest, Guidance

log = logging.getLogger(__name__)

_MARKERS = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("<|channel>thought\n", "<channel|>"),
)


@dataclass(frozen=True, slots=True)
class Chats:
    """How one model's chats are rendered and read. `calls` is None where the deployment takes no tools; `is_generic`
    says that its template knows none, so that a prompt of ours tells the model about them, and `is_single` that it
    takes one call in each turn; without `has_place` calls of earlier turns are told in their text.
    """

    calls: CallFormat | None
    is_generic: bool
    markers: Markers | None
    is_single: bool = False
    has_place: bool = True
    control: Mapping[str, int] = field(default_factory=dict)  # the ids of the format's marks that are control tokens
    names: frozenset[str] = frozenset()  # of the values that its template can be given

    @classmethod
    def of(cls, template: str, options: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> Chats:
        """Read them from a chat template; the deployment's `options` "tools" and "reasoning" precede it.

        "tools" is the name of a format, "generic" for a prompt of ours, or "off"; "reasoning" is "off", or the two
        markers with a space between them; "auto" is both's default.
        """
        tools, reasoning = options.get("tools", "auto"), options.get("reasoning", "auto")
        wanted = FORMATS.get(tools)
        found = None
        if tokenizer is not None and template and (wanted or tools == "auto"):
            found = recognised(tokenizer, (wanted,) if wanted is not None else tuple(FORMATS.values()))
        if found is None and tools == "auto" and "tools" in template:
            log.warning("no known format of calls was found in the chat template: functions are told by our own prompt")
        calls = found.calls if found is not None else wanted
        is_generic = calls is None and tools != "off"
        if reasoning == "auto":
            own = Markers(*calls.thought) if calls is not None and calls.thought is not None else None
            markers = own or next((known for known in _MARKERS if known.end in template), None)
        else:
            markers = None if reasoning == "off" else Markers(*reasoning.split(" "))
        calls = GENERIC if is_generic else calls
        control = tokenizer.control_ids(calls.marks) if tokenizer is not None and calls is not None else {}
        is_single, has_place = (found.is_single, found.has_place) if found is not None else (False, True)
        return cls(calls, is_generic, markers, is_single, has_place, control, _value_names(template))

    def rendering(self, request: GenerationRequest) -> Rendering:
        """Return how the request's messages are rendered; raise `InvalidRequestError` for tools that aren't taken."""
        if self.calls is None and request.tools is not None and request.tools.callable:
            message = "this model takes no tools: leave them out, or choose another model"
            raise InvalidRequestError(message, code="tools_not_supported", param="tools")
        if self.markers is None and request.sampling.demands_thought:
            message = f"this model doesn't reason: leave '{request.sampling.thinking_param}' out, or set it to 0"
            raise InvalidRequestError(message, code="reasoning_not_supported", param=request.sampling.thinking_param)
        self._check_values(request)
        return Rendering(
            tools=_rendered(request.tools),
            is_generic=self.is_generic,
            identify=self.calls.identify if self.calls is not None else None,
            is_single=self.is_single,
            writes=None if self.has_place else self.calls,
            thinks=request.sampling.thinking_tokens != 0,
            values=request.template_values,
            continues=request.continues,
        )

    def open_wishes(self, request: GenerationRequest) -> tuple[str, ...]:
        """Return the fields of the request's wishes that this model leaves open."""
        leaves_open = self.markers is None and request.sampling.wishes_thought
        return (request.sampling.thinking_param,) if leaves_open else ()

    def _check_values(self, request: GenerationRequest) -> None:
        """Refuse a value for which the template has no place; it would leave it out without a word."""
        for name, value in request.template_values:
            # A model that thinks needs no place to be told to, and one that doesn't is told nothing by "false".
            is_so = name == "enable_thinking" and (value is False or self.markers is not None)
            if name not in self.names and not is_so:
                at = f"chat_template_kwargs.{name}"
                known = f"it takes {', '.join(sorted(self.names))}" if self.names else "it takes none"
                message = f"'{at}': this model's chat template has no such value; {known}"
                raise InvalidRequestError(message, code="unsupported_parameter", param=at)

    def guidance(self, request: GenerationRequest) -> Guidance | None:
        """Return what the answer is held to: what its tools ask for, and where it calls none what the client does."""
        wanted, tools = request.sampling.guidance, request.tools
        wanted = None if wanted is None else loosened_guidance(wanted)
        if self.calls is None or request.prompt is not None:
            return wanted
        if tools is None:
            return framed(wanted, self.calls, self.control) if wanted is not None else None
        return guidance_of_tools(tools, self.calls, self.control, answer=wanted)

    def thought(
        self, tokenizer: Tokenizer, *, thinks: bool, budget: int | None, ends: frozenset[int], vocabulary: int
    ) -> Thought | None:
        """Return how a thought stands in an answer; None where the model has none."""
        if self.markers is None:
            return None
        begin, end = tokenizer.marker(self.markers.begin), tokenizer.marker(self.markers.end)
        merged = frozenset[int]().union(*(tokenizer.longer(ids[-1]) for ids in (begin, end) if len(ids) > 1))
        # The text of a mark is read, also where its token is a control token and writes nothing.
        blank = tokenizer.blank(SPACE).difference(begin, end, self.control.values())
        return Thought(begin, end, thinks, budget, ends, vocabulary, merged - {begin[-1], end[-1]}, blank)

    def parsing(self, request: GenerationRequest, ending: str) -> Parsing | None:
        """Return how the answer is read, whose prompt has that `ending`; None where it is nothing but text."""
        tools = request.tools
        functions = tools.callable if tools is not None else ()
        if request.prompt is not None or not (functions or self.markers):
            return None
        is_begun = bool(request.continues)  # with text, whatever stands in that
        thinks = self.markers is not None and not is_begun and ending.rstrip().endswith(self.markers.begin)
        silent = self.calls.silent if self.calls is not None else ()
        if tools is None or not functions:
            return Parsing(self.markers, thinks, silent=silent)
        kinds = {function.name: kinds_of(function.parameters) for function in functions}
        return Parsing(self.markers, thinks, self.calls, kinds, once=not tools.parallel, silent=silent)


def _value_names(template: str) -> frozenset[str]:
    if not template:
        return frozenset()
    from inference.text.template_values import value_names  # a gateway lacks the template language

    return value_names(template)


def _rendered(tools: Tools | None) -> Tools | None:
    return None if tools is None or tools.mode is ToolMode.NONE else tools
