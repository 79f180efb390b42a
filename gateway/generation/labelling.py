"""A chat that a classifier answers: what is classified as what, and the label as the answer's text. And what a rule
holds the answers of other models to.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gateway.errors.refusal import Refusal
from gateway.generation.instructions import instruction_in, instructions_of, said, speaks_of_json
from gateway.generation.intent import Intent
from gateway.generation.named_fields import fields_in
from gateway.generation.named_labels import LONGEST_LABEL, labels_in, read
from inference.messages import Message
from inference.types import Delta, GenerationRequest, Guidance, GuidanceKind, Kind, SamplingParams, Usage, Vector
from routing.tasks import CERTAIN, CLASSIFY, EXTRACT, is_automatic

MOST_LABELS = 256
MOST_READ = 40_000
"""Characters of earlier messages that are looked at for labels."""
NO_LABELS = "the request names no labels"

_BESIDE = frozenset({"title", "description", "default", "examples", "$schema", "$defs", "definitions"})


class Labelling(msgspec.Struct, frozen=True):
    """What of a chat is classified: its `text`, as one of the `labels` that the field `at` names (none: the model's
    own).

    The answer is the label, or that in JSON (`is_json`), as the only member of an object where `member` is its name.
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


def labelling_of(intent: Intent) -> Labelling:
    """Return what of the chat a classifier is asked; raise the Refusal (400) for what it can't answer, by field."""
    _check(intent)
    guidance = intent.sampling.guidance
    text, labels = _asked(intent.messages, is_guided=guidance is not None)
    at, is_json, member = "messages", False, None
    if guidance is not None:
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


def held_to(intent: Intent, task: str, source: str) -> Guidance | None:
    """Return what the answer of a chat has to be that doesn't say it itself, for a `task` that the step `source` found.

    One of the labels that it names; a JSON object with the fields that it names, each a text or null; or any JSON
    object. None where its task or what else it asks for is another, where it asks for a model by name and for neither
    labels nor fields, and where its task is only guessed and it speaks of no JSON: it may be talk.
    """
    sampling = intent.sampling
    has_tools = intent.tools is not None and bool(intent.tools.callable)
    if not intent.messages or has_tools or sampling.guidance is not None or sampling.ignore_eos:
        return None
    if not is_automatic(intent.model) and source not in CERTAIN:
        asked = instruction_in(*said(intent.messages))
        task, source = ("", source) if asked is None else (asked.task, "instruction")
    if task == EXTRACT:
        return _as_json(intent, is_certain=source in CERTAIN)
    if task != CLASSIFY or intent.messages[-1].role != "user":
        return None
    _, labels = _asked(intent.messages, is_guided=False)
    return Guidance(GuidanceKind.CHOICE, choices=labels, param="messages") if 0 < len(labels) <= MOST_LABELS else None


def _as_json(intent: Intent, *, is_certain: bool) -> Guidance | None:
    system, user = said(intent.messages)
    fields = next((found for part in instructions_of(system, user) if (found := fields_in(part))), ())
    if fields:
        schema = {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in fields},
            "required": list(fields),
            "additionalProperties": False,
        }
        return Guidance(GuidanceKind.JSON_SCHEMA, _json(schema), param="messages")
    is_meant = is_certain or speaks_of_json(system, user)
    return Guidance(GuidanceKind.JSON_OBJECT, param="messages") if is_meant else None


def why_unlabelled(intent: Intent) -> str:
    """Return why the chat shouldn't be given to a classifier that it doesn't ask for by name; "" where it may."""
    try:
        labelling = labelling_of(intent)
    except Refusal as refusal:
        return refusal.message
    return "" if labelling.labels else NO_LABELS


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
        "n": sampling.n > 1,
        "best_of": sampling.answers > 1,
        "logprobs": sampling.logprobs is not None,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "echo": sampling.echo,
        "logit_bias": bool(sampling.logit_bias),
        "allowed_token_ids": bool(sampling.allowed_token_ids),
        "min_tokens": bool(sampling.min_tokens),
        "ignore_eos": sampling.ignore_eos,
        "reasoning_effort": sampling.demands_thought,
    }
    for field, is_asked in wanted.items():
        if is_asked:
            message = f"'{field}' is not supported: this model classifies, and its answer is one of the labels."
            raise Refusal(400, "unsupported_parameter", message, param=field)


def _asked(messages: Sequence[Message], *, is_guided: bool) -> tuple[str, tuple[str, ...]]:
    """Return the text to classify and the labels that the instruction names: the system's, the user's with the text
    below it, or the latest one of an earlier turn.
    """
    if messages[-1].role != "user":
        message = "'messages' has to end with the user's: that is what this model classifies."
        raise Refusal(400, "invalid_value", message, param="messages")
    said = "\n".join(messages[-1].texts)
    earlier = list(_earlier(messages))
    system = [text for role, text in earlier if role == "system"]
    labels = next((found for text in system if (found := labels_in(text))), ())
    if labels or (is_guided and system):
        return said, labels
    asked = read(said)
    if is_guided or asked.labels:
        return (asked.text or said) if is_guided else asked.text, asked.labels
    return asked.text, next((found for role, text in earlier if role == "user" and (found := read(text).labels)), ())


def _earlier(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of what was said before, the latest first, as far as it is read for labels."""
    room = MOST_READ
    for message in reversed(messages[:-1]):
        said = "\n".join(message.texts)
        if message.role in ("system", "user"):
            room -= len(said)
            if room < 0:
                return
            yield message.role, said


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
