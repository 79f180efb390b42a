"""vLLM's tokenize and detokenize: the tokens of a prompt, and the text of tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from gateway.apis.chat.wire import Turn
from gateway.generation.intent import Intent
from gateway.wire.common import (
    ModelName,
    TemplateValues,
    check_model,
    continuing,
    is_continued,
    template_values,
    thinking_in_template,
)
from gateway.wire.decode import MAX_MESSAGES, MAX_PROMPT_TOKENS, MAX_TOKEN_ID, invalid
from gateway.wire.demands import Anything, Only
from gateway.wire.parts import Reading
from gateway.wire.tools import ChatTool, ToolList, tools_of
from inference.types import Kind, SamplingParams


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/tokenize``: of a raw `prompt`, or of `messages` in the model's chat template."""

    model: ModelName
    prompt: Annotated[str, Meta(min_length=1)] | None = None
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: ToolList | None = None
    chat_template_kwargs: TemplateValues | None = None
    add_special_tokens: bool | None = None  # before a raw prompt; if left out they are
    return_token_strs: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    chat_template: Annotated[Anything, Only()] = UNSET
    mm_processor_kwargs: Annotated[Anything, Only({})] = UNSET

    def intent(self, kind: Kind) -> Intent:
        """The request after all its checks, for a model of that `kind`."""
        reading = Reading()
        reading.check(self)
        check_model(self.model)
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "Send either 'prompt' or 'messages'.")
        is_begun = is_continued(self.continue_final_message, self.add_generation_prompt)
        if self.prompt is not None:
            if is_begun:
                raise invalid("continue_final_message", "'continue_final_message' belongs to 'messages'.")
            if self.tools is not None:
                raise invalid("tools", "'tools' belong to 'messages'.")
            if self.chat_template_kwargs:
                raise invalid("chat_template_kwargs", "'chat_template_kwargs' belong to 'messages'.")
            return Intent(endpoint="tokenize", kind=kind, model=self.model, prompt=self.prompt)
        if self.add_special_tokens:
            raise invalid("add_special_tokens", "The chat template of 'messages' adds them: leave the field out.")
        turns = self.messages or ()
        intent = Intent(
            endpoint="tokenize",
            kind=Kind.CHAT,
            model=self.model,
            messages=tuple(turn.message(reading, f"messages[{index}]") for index, turn in enumerate(turns)),
            tools=tools_of(self.tools, ChatTool, None, reading, parallel=None),
            template_values=template_values(self.chat_template_kwargs),
            sampling=SamplingParams(**thinking_in_template(self.chat_template_kwargs)),
            images=reading.images,
            image_at=reading.image_at,
        )
        return continuing(intent, "continue_final_message") if is_begun else intent


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/detokenize``."""

    model: ModelName
    tokens: Annotated[
        list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)
    ]

    def intent(self, kind: Kind) -> Intent:
        """The request after all its checks, for a model of that `kind`."""
        check_model(self.model)
        return Intent(endpoint="detokenize", kind=kind, model=self.model, prompt=tuple(self.tokens))


class TokenizeAnswer(msgspec.Struct):
    """The tokens of a prompt; `token_strs` are they as the vocabulary writes them, where they were asked for."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The text of tokens, that of control tokens included."""

    prompt: str
