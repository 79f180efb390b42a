"""The data plane's part of the OpenAPI document, made from the structs of its requests and answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.wire import input_items
from gateway.wire.adapters import AdapterDeleted, AdapterList, AdapterObject, AdapterRequest
from gateway.wire.batches import BatchList, BatchObject, BatchQuery, BatchRequest
from gateway.wire.chat import ChatChunk, ChatCompletion, ChatRequest
from gateway.wire.classification import ClassifyAnswer, ClassifyRequest
from gateway.wire.common import SCHEMAS, Only, neutral_fields
from gateway.wire.completions import Completion, CompletionRequest
from gateway.wire.embeddings import EmbeddingAnswer, EmbeddingRequest
from gateway.wire.files import FileDeleted, FileForm, FileList, FileObject, FileQuery
from gateway.wire.message_object import (
    AnsweredMessage,
    MessageEvent,
    MessageText,
    MessageThinking,
    MessageToolUse,
    TokenCount,
)
from gateway.wire.messages import CountTokensRequest, MessageRequest
from gateway.wire.models import ModelCard, ModelList
from gateway.wire.ranking import RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest
from gateway.wire.response_object import FunctionCallOutput, OutputMessage, ReasoningOutput, Response
from gateway.wire.responses import InputTokensRequest, ResponseRequest
from gateway.wire.stored import DeletedResponse, InputItems, InputTokens
from gateway.wire.tokenize import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.wire.usage import RequestUsage

Struct = type[msgspec.Struct]

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `answers` by media type, None for a file, empty for one that says with its status alone whether it
    is ready, to anybody; `example` is a body that any installation with a chat
    model answers (those of a batch and an adapter need a file). `form` has the fields of an upload beside `file`,
    `query` the path's.
    """

    method: str
    path: str
    identifier: str
    summary: str
    description: str
    answers: Mapping[str, Struct | None]
    body: Struct | None = None
    example: Mapping[str, Any] | None = None
    parameter: str = ""
    form: Struct | None = None
    query: Struct | None = None


_JSON, _EVENTS = "application/json", "text/event-stream"
_FORM, _BYTES = "multipart/form-data", "application/octet-stream"
_QUESTION = "What is the capital of France?"
ENDPOINTS = (
    Endpoint(
        "post",
        "/v1/chat/completions",
        "chat_completions",
        "Create a chat completion",
        "Answers a conversation; with `stream` in chunks that end with `data: [DONE]`.",
        {_JSON: ChatCompletion, _EVENTS: ChatChunk},
        ChatRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/responses",
        "responses",
        "Create a response",
        "Answers a conversation; with `stream` in events, the last of which has the whole response. The same path is a"
        " websocket. With `store` it is kept, so that it can be read and continued.",
        {_JSON: Response, _EVENTS: Response},
        ResponseRequest,
        {"model": "auto", "input": _QUESTION, "max_output_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/responses/input_tokens",
        "responses_input_tokens",
        "Count a response's input",
        "How many tokens the input of a response has where it would run. Nothing runs or is charged.",
        {_JSON: InputTokens},
        InputTokensRequest,
        {"model": "auto", "input": _QUESTION},
    ),
    Endpoint(
        "get",
        "/v1/responses/{id}",
        "responses_show",
        "Show a stored response",
        "A response of this project that was stored. With `stream`, the events of one in the background, from behind"
        " number `starting_after` on.",
        {_JSON: Response, _EVENTS: Response},
        parameter="id",
    ),
    Endpoint(
        "delete",
        "/v1/responses/{id}",
        "responses_delete",
        "Delete a stored response",
        "Deletes it for good; what continues it can't be continued any more.",
        {_JSON: DeletedResponse},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/responses/{id}/cancel",
        "responses_cancel",
        "Cancel a response in the background",
        "Ends it; what was generated is charged. One that has ended stays as it is.",
        {_JSON: Response},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/responses/{id}/input_items",
        "responses_input_items",
        "List a stored response's input",
        "The conversation that it continues and its own input, newest first; `limit`, `order` and `after` page it.",
        {_JSON: InputItems},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/messages",
        "messages",
        "Create a message",
        "Answers a conversation as Anthropic's Messages API does; with `stream` in events. The key may be sent as"
        " `x-api-key`; errors have that API's shape.",
        {_JSON: AnsweredMessage, _EVENTS: MessageEvent},
        MessageRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/messages/count_tokens",
        "messages_count_tokens",
        "Count a message's tokens",
        "Says how many tokens a prompt has where it would run now. Nothing runs and nothing is charged.",
        {_JSON: TokenCount},
        CountTokensRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}]},
    ),
    Endpoint(
        "post",
        "/v1/completions",
        "completions",
        "Create a completion",
        "Goes on from a text, without messages and chat template.",
        {_JSON: Completion, _EVENTS: Completion},
        CompletionRequest,
        {"model": "auto", "prompt": "The capital of France is", "max_tokens": 16},
    ),
    Endpoint(
        "post",
        "/v1/embeddings",
        "embeddings",
        "Create embeddings",
        "Answers with one vector for each input.",
        {_JSON: EmbeddingAnswer},
        EmbeddingRequest,
        {"model": "auto", "input": ["A text", "Another one"]},
    ),
    Endpoint(
        "post",
        "/v1/rerank",
        "rerank",
        "Rank documents by a query",
        "Answers with the documents, the most relevant first, by a model that reads query and document at once, or by"
        " the angle between their embeddings.",
        {_JSON: RerankAnswer},
        RerankRequest,
        {"model": "auto", "query": "Which one is a fruit?", "documents": ["A stone", "An apple"], "top_n": 1},
    ),
    Endpoint(
        "post",
        "/v1/score",
        "score",
        "Score pairs of texts",
        "Answers with one number for each pair: how well the second text matches the first.",
        {_JSON: ScoreAnswer},
        ScoreRequest,
        {"model": "auto", "text_1": "A fruit", "text_2": ["A stone", "An apple"]},
    ),
    Endpoint(
        "post",
        "/v1/classify",
        "classify",
        "Classify texts",
        "Answers with the most probable label of each text, and how probable each is: of labels that the request names,"
        " where the model compares texts with any, or of the model's own.",
        {_JSON: ClassifyAnswer},
        ClassifyRequest,
        {"model": "auto", "input": ["Where is my parcel?"], "labels": ["delivery", "billing"]},
    ),
    Endpoint(
        "post",
        "/v1/tokenize",
        "tokenize",
        "Tokenize a prompt",
        "Answers with the tokens of a prompt, or of messages in the model's chat template. Nothing runs and nothing is"
        " charged.",
        {_JSON: TokenizeAnswer},
        TokenizeRequest,
        {"model": "auto", "prompt": _QUESTION},
    ),
    Endpoint(
        "post",
        "/v1/detokenize",
        "detokenize",
        "Detokenize",
        "Answers with the text of tokens.",
        {_JSON: DetokenizeAnswer},
        DetokenizeRequest,
        {"model": "auto", "tokens": [72, 105]},
    ),
    Endpoint(
        "post",
        "/v1/files",
        "files_create",
        "Upload a file",
        "Stores a file for a batch: a request in each line.",
        {_JSON: FileObject},
        form=FileForm,
    ),
    Endpoint(
        "get",
        "/v1/files",
        "files_list",
        "List files",
        "The files of the key's project, those that batches wrote included.",
        {_JSON: FileList},
        query=FileQuery,
    ),
    Endpoint("get", "/v1/files/{id}", "files_show", "Show a file", "One file.", {_JSON: FileObject}, parameter="id"),
    Endpoint(
        "delete",
        "/v1/files/{id}",
        "files_delete",
        "Delete a file",
        "Hides a file at once; its bytes go when no open batch reads them.",
        {_JSON: FileDeleted},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/files/{id}/content",
        "files_content",
        "Download a file",
        "The file's bytes, or those that the header `range` asks for.",
        {_BYTES: None},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/batches",
        "batches_create",
        "Create a batch",
        "Runs the requests of a file within 24 hours, at the models' rates for batches.",
        {_JSON: BatchObject},
        BatchRequest,
        {"input_file_id": "file-id", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    ),
    Endpoint(
        "get",
        "/v1/batches",
        "batches_list",
        "List batches",
        "The batches of the key's project, the newest first.",
        {_JSON: BatchList},
        query=BatchQuery,
    ),
    Endpoint(
        "get", "/v1/batches/{id}", "batches_show", "Show a batch", "One batch.", {_JSON: BatchObject}, parameter="id"
    ),
    Endpoint(
        "post",
        "/v1/batches/{id}/cancel",
        "batches_cancel",
        "Cancel a batch",
        "Sends no more of its requests; those that are on their way are answered.",
        {_JSON: BatchObject},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/models",
        "models_list",
        "List the models",
        "The models that the key's plan may use, with context and prices.",
        {_JSON: ModelList},
    ),
    Endpoint(
        "get",
        "/v1/usage/{id}",
        "usage_of_request",
        "Show a request's usage",
        "What any request of the tenant used and cost, a cut stream included. The id is its `x-request-id`, or that of"
        " its answer (`chatcmpl-…`, `resp_…`).",
        {_JSON: RequestUsage},
        parameter="id",
    ),
    Endpoint("get", "/health", "health", "Ask whether requests are served", "Needs no key.", {}),
    Endpoint(
        "post",
        "/v1/adapters",
        "adapters_create",
        "Make an adapter",
        "Makes a model of the tenant's own: `base` with a LoRA adapter in PEFT's format. `file_id` names its"
        " adapter_model.safetensors, uploaded with the purpose `adapter`; `config` is its adapter_config.json.",
        {_JSON: AdapterObject},
        AdapterRequest,
        {"base": "a-model", "name": "tickets", "file_id": "file-0199", "config": {"peft_type": "LORA", "r": 8}},
    ),
    Endpoint(
        "get",
        "/v1/adapters",
        "adapters_list",
        "List adapters",
        "The tenant's own, each with whether it can be served.",
        {_JSON: AdapterList},
    ),
    Endpoint(
        "get",
        "/v1/adapters/{id}",
        "adapters_show",
        "Show an adapter",
        "By the name of its model.",
        {_JSON: AdapterObject},
        parameter="id",
    ),
    Endpoint(
        "delete",
        "/v1/adapters/{id}",
        "adapters_delete",
        "Delete an adapter",
        "Withdraws its model; requests that run with it end with it.",
        {_JSON: AdapterDeleted},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/models/{id}",
        "models_show",
        "Show a model",
        "One model; slashes in its name stay as they are.",
        {_JSON: ModelCard},
        parameter="id",
    ),
)


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
    if _FORM in content:
        return f"{command} \\\n  -F purpose=batch -F file=@requests.jsonl"
    example = content[_JSON]["example"]
    return f"{command} \\\n  -H 'Content-Type: application/json' \\\n  -d '{json.dumps(example)}'"


def _components() -> dict[str, Any]:
    kinds = {kind for endpoint in ENDPOINTS for kind in (*endpoint.answers.values(), endpoint.body) if kind is not None}
    kinds |= set(_ITEMS)
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=SCHEMAS)
    for kind in _structs(ordered):
        _tell_neutral(kind, components[kind.__name__])
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
    """Return `kinds` and the structs that their fields have which take neutral values only."""
    found = set(kinds)
    for kind in kinds:
        inner = [note for note in neutral_fields(kind).values() if isinstance(note, type)]
        found |= _structs([one for one in inner if one not in found])
    return found


def _tell_neutral(kind: Struct, schema: dict[str, Any]) -> None:
    for name, note in neutral_fields(kind).items():
        if isinstance(note, Only):
            why = f" ({note.why})" if note.why else ""
            schema["properties"][name] = {
                "description": f"Not supported{why}: leave it out.",
                "enum": [None, *note.values],
                "deprecated": True,
            }


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
_GENERATED = {"chat_completions", "responses", "messages", "completions", "embeddings", "rerank", "score"}


def _headers(endpoint: Endpoint, *, is_error: bool = False) -> dict[str, dict[str, str]]:
    """Return what an answer tells in its headers beside what HTTP itself has."""
    names = {"X-Request-Id"}
    if endpoint.method == "post":
        names.add("Idempotency-Replayed")
    if endpoint.identifier in _COUNTED | _GENERATED:
        names |= _LIMITED
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
                    "content": {_JSON: {"schema": {"$ref": SCHEMAS.format(name="Error")}}},
                },
            },
        }
        if not endpoint.answers:
            told = {"200": "It is ready.", "503": "It isn't."}
            operation["security"] = []
            operation["responses"] = {
                status: {"description": text, "headers": _headers(endpoint)} for status, text in told.items()
            }
        if _BYTES in endpoint.answers:
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
        if endpoint.method == "post":
            operation.setdefault("parameters", []).extend(_KEPT if _EVENTS in endpoint.answers else _KEPT[:1])
        if endpoint.query is not None:
            fields = _fields(endpoint.query)
            queried = [{"in": "query", "name": name, "schema": schema} for name, schema in fields.items()]
            operation.setdefault("parameters", []).extend(queried)
        if endpoint.form is not None:
            fields = {**_fields(endpoint.form), "file": _FILE}
            schema = {"type": "object", "required": ["purpose", "file"], "properties": fields}
            operation["requestBody"] = {"required": True, "content": {_FORM: {"schema": schema}}}
        if endpoint.body is not None:
            content = {"schema": _ref(endpoint.body), "example": endpoint.example}
            operation["requestBody"] = {"required": True, "content": {_JSON: content}}
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
