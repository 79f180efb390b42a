"""The data plane's part of the OpenAPI document, made from the declarations of its endpoints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from control.api.meanings import tell_meanings
from gateway.apis.endpoints import ENDPOINTS
from gateway.apis.meanings import meaning_in, meaning_of
from gateway.apis.messages.message_object import MessageText, MessageThinking, MessageToolUse
from gateway.apis.responses import input_items
from gateway.apis.responses.response_object import FunctionCallOutput, OutputMessage, ReasoningOutput
from gateway.errors.refusal import anthropic_error
from gateway.http.endpoint import Endpoint, Struct, Work
from gateway.wire.common import SCHEMAS
from gateway.wire.demands import NOT_ENFORCED, Only, Tried, Wish, notes_of

JSON, EVENTS = "application/json", "text/event-stream"
FORM, BYTES = "multipart/form-data", "application/octet-stream"
SECURITY = "inferenceKey"
BASE = "https://sluice.invalid"  # stands for the reader's own base URL, which whoever serves the document puts in

# Named by other structs' schemas alone.
_ITEMS: tuple[Struct, ...] = (
    *input_items.ITEMS,
    OutputMessage,
    ReasoningOutput,
    FunctionCallOutput,
    MessageText,
    MessageThinking,
    MessageToolUse,
)
_FILE = {"type": "string", "format": "binary", "description": "The file's bytes."}
_ERROR = {
    "type": "object",
    "description": "What went wrong; /docs/errors/ lists the codes.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "description": "The error.",
            "required": ["message", "type", "param", "code", "request_id"],
            "properties": {
                "message": {"type": "string", "description": "For people; it may change."},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field at fault."},
                "code": {"type": "string", "description": "Stable."},
                "request_id": {"type": "string", "format": "uuid"},
            },
        }
    },
}


_MESSAGES_ERROR = {
    "type": "object",
    "description": "What went wrong, in the shape of Anthropic's API; `error_code` is one of /docs/errors/.",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error", "description": "The kind of the object."},
        "error": {
            "type": "object",
            "description": "The error.",
            "required": ["type", "message", "details"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string", "description": "For people; it may change."},
                "details": {
                    "type": "object",
                    "required": ["error_code", "param"],
                    "properties": {
                        "error_code": {"type": "string", "description": "Stable."},
                        "param": {"type": ["string", "null"], "description": "The field at fault."},
                    },
                },
            },
        },
        "request_id": {"type": "string", "format": "uuid", "description": "The request's id."},
    },
}


def merged(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return the management API's document with the data plane's endpoints before its own (a hook of drf-spectacular).

    Raise ValueError where both have a component of one name.
    """
    tell_meanings(result)
    components = _components()
    own = result.setdefault("components", {})
    if clash := components.keys() & own.get("schemas", {}).keys():
        raise ValueError(f"both planes have a schema called {min(clash)}: rename the struct")
    own["schemas"] = dict(sorted({**own.get("schemas", {}), **components}.items()))
    own["headers"] = _HEADERS
    own.setdefault("securitySchemes", {})[SECURITY] = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key with the scope of the endpoint, or `inference` for all of them.",
    }
    return {**result, "servers": [{"url": BASE}], "paths": {**_paths(), **result["paths"]}}


def _components() -> dict[str, Any]:
    told = [kind for one in ENDPOINTS for kind in (one.gives, one.streams, one.takes if _has_body(one) else None)]
    kinds = {*filter(None, told), *_ITEMS}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=SCHEMAS)
    for kind in _structs(ordered):
        _tell_declared(kind, components[kind.__name__])
    for name, schema in components.items():
        for field, told in schema.get("properties", {}).items():
            if "description" not in told:
                told["description"] = meaning_in(name, field)
    return {**_of_ecma(components), "Error": _ERROR, "MessagesError": _MESSAGES_ERROR}


def _of_ecma(schema: Any) -> Any:
    """Return a JSON schema whose patterns end as in clients' languages, where Python's end of a text is a letter, and
    whose descriptions are docstrings without their indentation, which Python 3.13 and later take away themselves.
    """
    if isinstance(schema, list):
        return [_of_ecma(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _TEXTS.get(name, _of_ecma)(value) if isinstance(value, str) else _of_ecma(value)
        for name, value in schema.items()
    }


_TEXTS = {"pattern": lambda pattern: pattern.replace(r"\Z", "$"), "description": inspect.cleandoc}


def _structs(kinds: list[Struct]) -> set[Struct]:
    """Return `kinds` and the structs in their fields, in lists and choices too."""
    found = set(kinds)
    for kind in kinds:
        hints = get_type_hints(kind, include_extras=True).values()
        inner = {struct for hint in hints for struct in _inside(hint)}
        found |= _structs([one for one in inner if one not in found])
    return found


def _inside(hint: Any) -> Iterator[Struct]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _inside(part)


def _tell_declared(kind: Struct, schema: dict[str, Any]) -> None:
    """Give each property of a struct's schema its meaning, and what is declared of it."""
    notes = notes_of(kind)
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in schema.get("properties", {}):
            continue
        properties, note = schema["properties"], notes.get(field.name)
        if isinstance(note, Only):
            known = [None, *note.values]
            properties[field.encode_name] = {"description": note.told, "enum": known, "deprecated": True}
            continue
        told = meaning_of(kind, field.name)
        if isinstance(note, Wish | Tried):
            told += f" A wish: where it changes nothing, the header {NOT_ENFORCED} says so."
        properties[field.encode_name] = {"description": told} | properties[field.encode_name]


_KEPT = [
    {
        "in": "header",
        "name": "Idempotency-Key",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "description": "The same request under the same key gets the same answer for 24 hours, charged once.",
    },
    {
        "in": "header",
        "name": "Last-Event-ID",
        "schema": {"type": "integer", "minimum": 0},
        "description": "With the key of a stream: go on behind this event.",
    },
]


def _header(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string", **schema}}


_HEADERS = {
    "X-Request-Id": _header("Names the request in the logs, in usage and for support.", format="uuid"),
    "Request-Id": _header("The same, as Anthropic's clients know it.", format="uuid"),
    "Idempotency-Replayed": _header("The answer is that of an earlier request under this key.", enum=["true"]),
    "X-Sluice-Model": _header("The model that routing chose; errors from there on tell it too."),
    "X-Sluice-Task": _header("The task that routing found, where it found one."),
    "X-Sluice-Not-Enforced": _header("The wishes among the request's fields that change nothing."),
    "X-Sluice-Credits": _header("What the request cost, where that is known before the body is sent."),
    "X-Sluice-Credits-At-Most": _header("The most that the request can cost."),
    "X-Sluice-Credits-Probably": _header("What it costs with an answer of the usual length."),
    **{
        f"X-RateLimit-{what}-{name}": _header(f"{told} of the tightest limit of {name}.")
        for name in ("Requests", "Credits", "Tokens")
        for what, told in {
            "Limit": "The size",
            "Remaining": "What is left",
            "Reset": "When all is back (`1.5s`)",
        }.items()
    },
    "Content-Range": _header("Which bytes of the file these are."),
    "Retry-After": _header("Seconds after which another try may help."),
    "X-Should-Retry": _header("Whether another try may help.", enum=["true", "false"]),
}
_OF_WORK = {
    Work.NOTHING: set[str](),
    Work.COUNTS: {"X-Sluice-Model", "X-Sluice-Task", "X-Sluice-Not-Enforced"}
    | {name for name in _HEADERS if name.startswith("X-RateLimit")},
}
_OF_WORK[Work.QUOTES] = _OF_WORK[Work.COUNTS] | {"X-Sluice-Credits-At-Most", "X-Sluice-Credits-Probably"}
_OF_WORK[Work.GENERATES] = _OF_WORK[Work.COUNTS] | {"X-Sluice-Credits"}
_HEALTH = {
    "operationId": "health",
    "summary": "Ask whether requests are served",
    "description": "Needs no key.",
    "tags": ["inference"],
    "security": [],
    "responses": {
        status: {"description": text, "headers": {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}}
        for status, text in {"200": "It is ready.", "503": "It isn't."}.items()
    },
}


def _headers(endpoint: Endpoint, *, is_error: bool = False) -> dict[str, dict[str, str]]:
    """Return the headers of an answer beyond those of HTTP itself."""
    names = {"X-Request-Id", *_OF_WORK[endpoint.work]}
    if endpoint.keeps:
        names.add("Idempotency-Replayed")
    if endpoint.error_body is anthropic_error:
        names.add("Request-Id")
    if is_error:
        names |= {"Retry-After", "X-Should-Retry"}
    return {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS if name in names}


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.shown_path, {})[endpoint.method.lower()] = _operation(endpoint)
    return paths | {"/health": {"get": _HEALTH}}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    answer = {"description": "The answer.", "headers": _headers(endpoint), "content": _answers(endpoint)}
    error = {
        "description": "An error.",
        "headers": _headers(endpoint, is_error=True),
        "content": {JSON: {"schema": {"$ref": SCHEMAS.format(name=_error_of(endpoint))}}},
    }
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": endpoint.description,
        "tags": ["inference"],
        "security": [{SECURITY: []}],
        "responses": {"200": answer, "default": error},
    }
    if endpoint.gives is None:
        part = {"Content-Range": {"$ref": "#/components/headers/Content-Range"}}
        described = {"description": "The part that was asked for.", "headers": _headers(endpoint) | part}
        operation["responses"]["206"] = {**answer, **described}
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.form is not None:
        fields = {**_fields(endpoint.form), "file": _FILE}
        schema = {"type": "object", "required": ["purpose", "file"], "properties": fields}
        operation["requestBody"] = {"required": True, "content": {FORM: {"schema": schema}}}
    if endpoint.takes is not None and _has_body(endpoint):
        content = {"schema": _ref(endpoint.takes), "example": endpoint.example}
        operation["requestBody"] = {"required": True, "content": {JSON: content}}
    return operation


def _error_of(endpoint: Endpoint) -> str:
    return "MessagesError" if endpoint.error_body is anthropic_error else "Error"


def _answers(endpoint: Endpoint) -> dict[str, Any]:
    """Return the content of an answer by its media type."""
    whole = {BYTES: {"schema": _FILE}} if endpoint.gives is None else {JSON: {"schema": _ref(endpoint.gives)}}
    return whole if endpoint.streams is None else {**whole, EVENTS: {"schema": _ref(endpoint.streams)}}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    if "{" in endpoint.path:
        parameters.append(
            {
                "in": "path",
                "name": "id",
                "required": True,
                "schema": {"type": "string"},
                "description": "The object's id.",
            }
        )
    if endpoint.keeps:
        parameters += _KEPT if endpoint.streams is not None else _KEPT[:1]
    if endpoint.takes is not None and not _has_body(endpoint):
        fields = _fields(endpoint.takes)
        parameters += [
            {"in": "query", "name": name, "description": schema.pop("description"), "schema": schema}
            for name, schema in fields.items()
        ]
    return parameters


def _has_body(endpoint: Endpoint) -> bool:
    return endpoint.method == "POST" and endpoint.takes is not None


def _fields(kind: Struct) -> dict[str, Any]:
    """Return the schema of each field of a flat struct that may be given, when it is given."""
    _, components = msgspec.json.schema_components([kind], ref_template=SCHEMAS)
    _tell_declared(kind, components[kind.__name__])
    schemas = _of_ecma(components)[kind.__name__]["properties"].items()
    notes = notes_of(kind)
    return {name: _given(schema) for name, schema in schemas if not isinstance(notes.get(name), Only)}


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return {**schema, "type": "string", "enum": [value for value in schema["enum"] if value is not None]}
    given: dict[str, Any] = next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
    return {"description": schema["description"], **given}


def _ref(kind: Struct) -> dict[str, str]:
    return {"$ref": SCHEMAS.format(name=kind.__name__)}
