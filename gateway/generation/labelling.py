"""A chat that a classifier answers: what is classified as what, and the label as the answer's text. And what the
answers of other specialists are held to.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import msgspec

from gateway.errors.refusal import Refusal
from gateway.generation.intent import Intent
from inference.types import Delta, GenerationRequest, Guidance, GuidanceKind, Kind, SamplingParams, Usage, Vector
from routing.hook import CLASSIFY, EXTRACT, LONGEST_LABEL, Instruction

MOST_LABELS = 256
NO_LABELS = "the request names no labels"
NO_FIELDS = "the request names no fields that are read for certain"

_BESIDE = frozenset({"title", "description", "default", "examples", "$schema", "$defs", "definitions"})


class Labelling(msgspec.Struct, frozen=True):
    """A chat read as a classification of `text` by the `labels` that the field `at` names (none: the model's own).

    The answer is the label, or its JSON (`is_json`), as the only member of an object where `member` is its name.
    """

    text: str
    labels: tuple[str, ...] = ()
    at: str = "messages"
    is_json: bool = False
    member: str | None = None

    def request(self, chat: GenerationRequest) -> GenerationRequest:
        """Return the chat as the classification that answers it."""
        return replace(
            chat,
            kind=Kind.CLASSIFICATION,
            messages=(),
            tools=None,
            template_values=(),
            sampling=SamplingParams(),
            inputs=(self.text,),
            labels=self.labels,
            adapter="",
        )

    def answer(self, vector: Vector, usage: Usage) -> Delta:
        """Return the whole answer, the most probable of the labels, with the usage so far."""
        spelled = {label.casefold(): label for label in reversed(self.labels)} | {label: label for label in self.labels}
        probable = zip(vector.labels, struct.unpack(f"<{len(vector.labels)}f", vector.data), strict=True)
        # The model has a name for a text of none of them, which counts if it was named, however it was written.
        named = [
            (spelled.get(label, spelled.get(label.casefold(), label)), share)
            for label, share in probable
            if not self.labels or label in spelled or label.casefold() in spelled
        ]
        label = max(named, key=lambda one: one[1])[0]
        if self.member is not None:
            return Delta(_json({self.member: label}), usage)
        return Delta(_json(label) if self.is_json else label, usage)

    def refusal_of(self, refusal: Refusal) -> Refusal:
        """Return an engine's refusal of the classification as one of the chat."""
        fields = {"input": ("messages", "text to classify"), "labels": (self.at, "labels")}
        if refusal.param not in fields:
            return refusal
        field, what = fields[refusal.param]
        message = f"'{field}': the {what} can't be taken: {refusal.message}"
        return Refusal(refusal.status, refusal.code, message, param=field)


def labelling_of(intent: Intent, instruction: Instruction | None) -> Labelling:
    """Return what of the chat a classifier is asked, by its `instruction`, as far as that was read; raise the Refusal
    (400) for what it can't answer, by field.
    """
    _check(intent)
    *earlier, last = intent.messages
    if last.role != "user":
        message = "'messages' has to end with the user's: that is what this model classifies."
        raise Refusal(400, "invalid_value", message, param="messages")
    text = whole = "\n".join(last.texts)
    labels: tuple[str, ...] = ()
    if instruction is not None:
        text, labels = instruction.text, instruction.labels
    at, is_json, member = "messages", False, None
    guidance = intent.sampling.guidance
    if guidance is not None:
        if not text or any(message.role == "system" for message in earlier):
            text = whole  # the instruction is the system's, or all that there is
        at = guidance.param
        labels, is_json, member = _guided(guidance)
        if not labels or any(not label.strip() or len(label) > LONGEST_LABEL for label in labels):
            message = f"'{at}' has to name labels, each of 1 to {LONGEST_LABEL} characters."
            raise Refusal(400, "invalid_value", message, param=at)
    if not text.strip():
        message = "'messages': there are labels and no text below them that could be classified."
        raise Refusal(400, "invalid_value", message, param="messages")
    if len(labels) > MOST_LABELS:
        raise Refusal(400, "invalid_value", f"'{at}' names more than {MOST_LABELS} labels.", param=at)
    return Labelling(text, tuple(dict.fromkeys(labels)), at, is_json, member)


def why_unlabelled(intent: Intent, instruction: Instruction | None) -> str:
    """Return why the chat shouldn't be given to a classifier that it doesn't ask for by name; "" where it may."""
    try:
        labelling = labelling_of(intent, instruction)
    except Refusal as refusal:
        return refusal.message
    return "" if labelling.labels else NO_LABELS


def why_unsure(instruction: Instruction | None, *, has_schema: bool) -> str:
    """Return why a specialist can't be sure of what the chat asks for; "" where it can, and without a reader."""
    if instruction is None:
        return ""
    is_vague = instruction.task == EXTRACT and not instruction.fields and not has_schema
    return instruction.unsure or (NO_FIELDS if is_vague else "")


def held_to(intent: Intent, instruction: Instruction | None) -> Guidance | None:
    """Return what the answer of a chat has to be that doesn't say it itself, by its `instruction`.

    One of the labels that it names; a JSON object with the fields that it names, each a text or null; or any JSON
    object. None where it asks for neither or for something else beside.
    """
    sampling = intent.sampling
    has_tools = intent.tools is not None and bool(intent.tools.callable)
    if instruction is None or has_tools or sampling.guidance is not None or sampling.ignore_eos:
        return None
    if instruction.task == CLASSIFY and intent.messages[-1].role == "user":
        labels = instruction.labels
        is_held = 0 < len(labels) <= MOST_LABELS
        return Guidance(GuidanceKind.CHOICE, choices=labels, param="messages") if is_held else None
    if instruction.task != EXTRACT:
        return None
    if instruction.fields:
        schema = {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in instruction.fields},
            "required": list(instruction.fields),
            "additionalProperties": False,
        }
        return Guidance(GuidanceKind.JSON_SCHEMA, _json(schema), param="messages")
    return Guidance(GuidanceKind.JSON_OBJECT, param="messages")


def _check(intent: Intent) -> None:
    """Refuse what can't be honoured by an answer that is one of some labels and isn't sampled."""
    sampling = intent.sampling
    if intent.images != "none":
        message = "A classifier reads text only: this model takes no images."
        raise Refusal(400, "images_not_supported", message, param=intent.image_at or "messages")
    wanted = {
        "prompt": intent.prompt is not None,
        "tools": (intent.tools is not None and bool(intent.tools.callable))
        or any(message.has_tools for message in intent.messages),
        "chat_template_kwargs": bool(intent.template_values),
        intent.continues: bool(intent.continues),
        "n": sampling.n > 1,
        "best_of": sampling.answers > 1,
        "logprobs": sampling.logprobs is not None,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "echo": sampling.echo,
        "logit_bias": bool(sampling.logit_bias),
        "allowed_token_ids": bool(sampling.allowed_token_ids),
        "min_tokens": bool(sampling.min_tokens),
        "ignore_eos": sampling.ignore_eos,
        sampling.thinking_param: sampling.demands_thought,
    }
    for field, is_asked in wanted.items():
        if is_asked:
            message = f"'{field}' is not supported: this model classifies, and its answer is one of the labels."
            raise Refusal(400, "unsupported_parameter", message, param=field)


def _guided(guidance: Guidance) -> tuple[tuple[str, ...], bool, str | None]:
    """Return the labels to which the answer is held, whether it is JSON, and its member's name; refuse the rest."""
    if guidance.kind is GuidanceKind.CHOICE:
        return guidance.choices, False, None
    if guidance.kind is GuidanceKind.JSON_SCHEMA and not guidance.whitespace:
        try:
            schema = json.loads(guidance.source)
            json.dumps(schema, ensure_ascii=False).encode()  # whose texts an answer may have to repeat
        except (ValueError, RecursionError):
            schema = None
        if labels := _enumerated(schema, schema):
            return labels, True, None
        if (found := _only_member(schema)) is not None:
            return found[1], True, found[0]
    message = (
        f"'{guidance.param}' is not supported: this model classifies, and answers with a choice, a JSON schema that is "
        "an enum of texts, or one of an object whose only property is such an enum."
    )
    raise Refusal(400, "unsupported_parameter", message, param=guidance.param)


def _only_member(schema: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return name and labels of the only property of an object, where that is all that the schema says."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return None
    if schema.keys() - {"type", "properties", "required", "additionalProperties"} - _BESIDE:
        return None
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    [(name, value)] = properties.items()
    labels = _enumerated(value, schema)
    return (name, labels) if labels and schema.get("required", [name]) in ([], [name]) else None


def _enumerated(schema: Any, root: Any) -> tuple[str, ...]:
    """Return the texts that the schema lists, itself or where it refers to; empty where it says anything else."""
    if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        room, _, name = reference.removeprefix("#/").partition("/")
        rooms = root.get(room) if room in ("$defs", "definitions") else None
        schema = rooms.get(name) if isinstance(rooms, dict) and not schema.keys() - {"$ref"} - _BESIDE else None
    if not isinstance(schema, dict) or schema.keys() - {"type", "enum", "const"} - _BESIDE:
        return ()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if schema.get("type", "string") != "string" or not isinstance(values, list):
        return ()
    return tuple(values) if all(isinstance(value, str) and value for value in values) else ()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
