"""Values for a model's chat template, as vLLM's clients send them (`chat_template_kwargs`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from gateway.wire.decode import invalid, require_no_nul
from inference.types import Asked, TemplateValue

FIELD = "chat_template_kwargs"
THINKS = "enable_thinking"  # what the templates of most models that think or not call it
TEMPLATE_THINKS = f"{FIELD}.{THINKS}"
NOT_ASKED: dict[str, Any] = {"thinking_tokens": None, "thinking_asked": Asked.NOT}

# A text ends in the prompt: it is bounded, and control tokens in it are text, as in a message.
_Value = bool | Annotated[int, Meta(ge=-(2**53), le=2**53)] | float | Annotated[str, Meta(max_length=4096)] | None
TemplateValues = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}\Z")], _Value], Meta(max_length=16)
]


def template_values(given: Mapping[str, TemplateValue | None] | None) -> tuple[tuple[str, TemplateValue], ...]:
    """Return what the client gives to the template, by name; null is the same as leaving a value out."""
    values = tuple((name, value) for name, value in (given or {}).items() if value is not None)
    for name, value in values:
        if isinstance(value, str):
            require_no_nul(f"{FIELD}.{name}", value)
    return values


def thinking_in_template(
    given: Mapping[str, TemplateValue | None] | None, thinking: dict[str, Any] = NOT_ASKED
) -> dict[str, Any]:
    """Return how long the model thinks, which the other fields say as `thinking`, as the template is told too.

    Refuse (400) what contradicts them.
    """
    thinks, at = (given or {}).get(THINKS), TEMPLATE_THINKS
    if thinks is None:
        return thinking
    most = thinking["thinking_tokens"]
    if not isinstance(thinks, bool):
        raise invalid(at, f"'{at}' is true or false.")
    if thinks if most == 0 else not thinks and most is not None:
        raise invalid(at, f"'{at}' contradicts what 'reasoning_effort' or 'thinking_token_budget' says: leave one out.")
    told = thinking | {"thinking_tokens": most if thinks else 0}
    if told["thinking_asked"] is Asked.NOT:
        told |= {"thinking_asked": Asked.WISH, "thinking_param": at}
    return told
