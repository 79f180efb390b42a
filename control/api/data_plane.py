"""The data plane's part of the OpenAPI document, made from the structs of its requests and answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from control.api.endpoints import BYTES, ENDPOINTS, EVENTS, FORM, JSON, Endpoint, Struct
from gateway.apis.messages.message_object import MessageText, MessageThinking, MessageToolUse
from gateway.apis.responses import input_items
from gateway.apis.responses.response_object import FunctionCallOutput, OutputMessage, ReasoningOutput
from gateway.wire.common import SCHEMAS
from gateway.wire.demands import NOT_ENFORCED, Only, Tried, Wish, inner_of, notes_of

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
_FILE = {"type": "string", "format": "binary"}
_ERROR = {
    "type": "object",
    "description": "What went wrong; docs/errors.md lists the codes.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
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


def merged(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Return the management API's document with the data plane's endpoints before its own (a hook of drf-spectacular).

    Raise ValueError where both have a component of one name.
    """
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


def curl(endpoint: Mapping[str, Any], method: str, path: str) -> str:
    """Return a command that calls the operation of the document at `BASE`; empty for one that has no example."""
    if SECURITY not in {name for need in endpoint.get("security", ()) for name in need} or "{" in path:
        return ""
    command = f'curl {BASE}{path} -H "Authorization: Bearer $SLUICE_API_KEY"'
    if method == "get":
        return command
    content = endpoint["requestBody"]["content"]
    if FORM in content:
        return f"{command} \\\n  -F purpose=batch -F file=@requests.jsonl"
    body = content[JSON]  # the management API's has named examples
    example = body["example"] if "example" in body else next(iter(body["examples"].values()))["value"]
    return f"{command} \\\n  -H 'Content-Type: application/json' \\\n  -d '{json.dumps(example)}'"


def _components() -> dict[str, Any]:
    kinds = {kind for endpoint in ENDPOINTS for kind in (*endpoint.answers.values(), endpoint.body) if kind is not None}
    kinds |= set(_ITEMS)
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=SCHEMAS)
    for kind in _structs(ordered):
        _tell_declared(kind, components[kind.__name__])
    return {**_of_ecma(components), "Error": _ERROR}


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
    """Return `kinds` and the structs in their fields."""
    found = set(kinds)
    for kind in kinds:
        inner = [struct for structs in inner_of(kind).values() for struct in structs]
        found |= _structs([one for one in inner if one not in found])
    return found


def _tell_declared(kind: Struct, schema: dict[str, Any]) -> None:
    for name, note in notes_of(kind).items():
        match note:
            case Only():
                why = f" ({note.why})" if note.why else ""
                schema["properties"][name] = {
                    "description": f"Not supported{why}: {note.instead or 'leave it out'}.",
                    "enum": [None, *note.values],
                    "deprecated": True,
                }
            case Wish() | Tried():
                wish = {"description": f"A wish: where it changes nothing, the header {NOT_ENFORCED} says so."}
                schema["properties"][name] = wish | schema["properties"][name]


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
    "Idempotency-Replayed": _header("The answer is that of an earlier request under this key.", enum=["true"]),
    "X-Sluice-Model": _header("The model that routing chose; errors from there on tell it too."),
    "X-Sluice-Task": _header("The task that routing found, where it found one."),
    "X-Sluice-Not-Enforced": _header("The wishes among the request's fields that change nothing."),
    "X-Sluice-Credits": _header("What the request cost, where that is known before the body is sent."),
    **{
        f"X-RateLimit-{what}-{name}": _header(f"{told} of the tightest limit of {name}.")
        for name in ("Requests", "Credits")
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
_LIMITED = {name for name in _HEADERS if name.startswith("X-RateLimit")}
_COUNTED = {
    "tokenize",
    "detokenize",
    "responses_input_tokens",
    "messages_count_tokens",
}  # they take one of the requests
_UNKEPT = {"tokenize", "detokenize"}
_GENERATED = {"chat_completions", "responses", "messages", "completions", "embeddings", "rerank", "score", "classify"}
_ROUTED = {"X-Sluice-Model", "X-Sluice-Task", "X-Sluice-Not-Enforced"}


def _headers(endpoint: Endpoint, *, is_error: bool = False) -> dict[str, dict[str, str]]:
    """Return what an answer tells in its headers beside what HTTP itself has."""
    names = {"X-Request-Id"}
    if endpoint.method == "post" and endpoint.identifier not in _UNKEPT:
        names.add("Idempotency-Replayed")
    if endpoint.identifier in _COUNTED | _GENERATED:
        names |= _LIMITED | _ROUTED
    if endpoint.identifier in _GENERATED:
        names.add("X-Sluice-Credits")
    if is_error:
        names |= {"Retry-After", "X-Should-Retry"}
    return {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS if name in names}


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        operation: dict[str, Any] = {
            "operationId": endpoint.identifier,
            "summary": endpoint.summary,
            "description": endpoint.description,
            "tags": ["inference"],
            "security": [{SECURITY: []}],
            "responses": {
                "200": {
                    "description": "The answer.",
                    "headers": _headers(endpoint),
                    "content": {
                        media: {"schema": _FILE if kind is None else _ref(kind)}
                        for media, kind in endpoint.answers.items()
                    },
                },
                "default": {
                    "description": "An error.",
                    "headers": _headers(endpoint, is_error=True),
                    "content": {JSON: {"schema": {"$ref": SCHEMAS.format(name="Error")}}},
                },
            },
        }
        if not endpoint.answers:
            told = {"200": "It is ready.", "503": "It isn't."}
            operation["security"] = []
            operation["responses"] = {
                status: {"description": text, "headers": _headers(endpoint)} for status, text in told.items()
            }
        if BYTES in endpoint.answers:
            part = {"Content-Range": {"$ref": "#/components/headers/Content-Range"}}
            operation["responses"]["206"] = {
                **operation["responses"]["200"],
                "description": "The part that was asked for.",
                "headers": _headers(endpoint) | part,
            }
        if endpoint.parameter:
            operation["parameters"] = [
                {"in": "path", "name": endpoint.parameter, "required": True, "schema": {"type": "string"}}
            ]
        if endpoint.method == "post" and endpoint.identifier not in _UNKEPT:
            operation.setdefault("parameters", []).extend(_KEPT if EVENTS in endpoint.answers else _KEPT[:1])
        if endpoint.query is not None:
            fields = _fields(endpoint.query)
            queried = [{"in": "query", "name": name, "schema": schema} for name, schema in fields.items()]
            operation.setdefault("parameters", []).extend(queried)
        if endpoint.form is not None:
            fields = {**_fields(endpoint.form), "file": _FILE}
            schema = {"type": "object", "required": ["purpose", "file"], "properties": fields}
            operation["requestBody"] = {"required": True, "content": {FORM: {"schema": schema}}}
        if endpoint.body is not None:
            content = {"schema": _ref(endpoint.body), "example": endpoint.example}
            operation["requestBody"] = {"required": True, "content": {JSON: content}}
        paths.setdefault(endpoint.path, {})[endpoint.method] = operation
    return paths


def _fields(kind: Struct) -> dict[str, Any]:
    """Return the schema of each field of a flat struct whose values are texts or numbers, when it is given."""
    _, components = msgspec.json.schema_components([kind], ref_template=SCHEMAS)
    return {name: _given(schema) for name, schema in _of_ecma(components)[kind.__name__]["properties"].items()}


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return {"type": "string", "enum": [value for value in schema["enum"] if value is not None]}
    given: dict[str, Any] = next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
    return given


def _ref(kind: Struct) -> dict[str, str]:
    return {"$ref": SCHEMAS.format(name=kind.__name__)}
