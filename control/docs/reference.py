"""The API's reference: a page of each operation of the OpenAPI document, with fields, errors, limits and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings

from control.api.openapi import published
from control.docs.examples import Asked, Example, asked_of, examples_of
from control.docs.site import PAGES
from gateway.apis.endpoints import ENDPOINTS
from gateway.apis.fields import REQUESTS, WEBSOCKET, rows
from gateway.http.endpoint import Endpoint, Work

METHODS = ("get", "post", "patch", "put", "delete")
DEPTH = 3
"""So far are answers unfolded: what lies deeper is named by its kind."""

GROUPS = {
    "responses": "Responses",
    "messages": "Messages",
    "chat": "Chat and text",
    "completions": "Chat and text",
    "embeddings": "Vectors, ranks, labels",
    "rerank": "Vectors, ranks, labels",
    "score": "Vectors, ranks, labels",
    "classify": "Vectors, ranks, labels",
    "tokenize": "Tokens",
    "detokenize": "Tokens",
    "files": "Files and batches",
    "batches": "Files and batches",
    "models": "Models",
    "adapters": "Models",
    "usage": "Usage",
    "key": "Usage",
    "health": "Health",
}
"""The groups of the data plane's endpoints, by the first part of their paths."""
MANAGEMENT = "Management"


@dataclass(frozen=True, slots=True)
class Field:
    """A row of a table of fields; `is_what` tells a request's demand from its wish."""

    name: str
    is_what: str
    takes: str
    meaning: str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer by its status, with its fields."""

    status: str
    media: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """An error: its statuses, its code, and its meaning in Markdown."""

    status: str
    code: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint's page."""

    id: str
    method: str
    path: str
    group: str
    summary: str
    description: str
    asked: Asked
    examples: tuple[Example, ...]
    scope: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    over_websocket: tuple[Field, ...]
    answers: tuple[Answer, ...]
    headers: tuple[Field, ...]
    errors: tuple[tuple[str, tuple[Code, ...]], ...]
    limits: tuple[str, ...]


@cache
def operations() -> Mapping[str, Operation]:
    """Return all operations by their ids, in the order of the document."""
    document = published().document
    found = (
        _operation(document, path, method, methods[method])
        for path, methods in document["paths"].items()
        for method in METHODS
        if method in methods
    )
    return {one.id: one for one in sorted(found, key=lambda one: list(_all_groups()).index(one.group))}


def _all_groups() -> Iterator[str]:
    yield from dict.fromkeys(["Chat and text", *GROUPS.values(), MANAGEMENT])


def by_group() -> list[tuple[str, list[Operation]]]:
    """Return the operations of each group."""
    return [(group, [one for one in operations().values() if one.group == group]) for group in _all_groups()]


def _operation(document: Mapping[str, Any], path: str, method: str, told: Mapping[str, Any]) -> Operation:
    endpoint = next((one for one in ENDPOINTS if one.name == told["operationId"]), None)
    asked = asked_of(told, method, path)
    content = told.get("requestBody", {}).get("content", {})
    summary = told.get("summary", "")
    body = tuple(_body(document, content))
    websocket: tuple[Field, ...] = ()
    if summary in REQUESTS:
        required = {one.name for one in body if one.is_required}
        body = tuple(Field(name, *row, is_required=name in required) for name, row in rows(summary).items())
    if endpoint is not None and endpoint.name == "responses":
        websocket = tuple(Field(name, *row) for name, row in rows(WEBSOCKET).items())
    part = path.split("/")[2] if path.startswith("/v1/") else path.strip("/")
    return Operation(
        id=told["operationId"],
        method=method.upper(),
        path=path,
        group=GROUPS.get(part, MANAGEMENT),
        summary=summary,
        description=told.get("description", ""),
        asked=asked,
        examples=examples_of(asked) if asked.by_program else (),
        scope=_scope(told, endpoint),
        parameters=tuple(_parameters(document, told)),
        body=body,
        over_websocket=websocket,
        answers=tuple(_answers(document, told)),
        headers=tuple(_headers(document, told)),
        errors=tuple(_errors(endpoint, path, method)),
        limits=tuple(_limits(endpoint, method)),
    )


def _scope(told: Mapping[str, Any], endpoint: Endpoint | None) -> str:
    if endpoint is not None:
        return f"An API key with the scope `{endpoint.scope}`, or `inference`, which has all of the data plane."
    schemes = {name for need in told.get("security", ()) for name in need}
    kinds = {
        "managementKey": "an API key with the scope `management`",
        "inferenceKey": "any API key",
        "adminKey": "an admin key",
        "session": "a signed-in member's session",
    }
    words = [text for name, text in kinds.items() if name in schemes]
    return f"{' or '.join(words)}.".capitalize().replace("api key", "API key") if words else "No key."


def _resolve(document: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    if "allOf" in node and len(node["allOf"]) == 1:
        node = node["allOf"][0]
    if "anyOf" in node:
        others = [one for one in node["anyOf"] if one.get("type") != "null"]
        node = others[0] if len(others) == 1 else node
    if "$ref" not in node:
        return node
    found: Mapping[str, Any] = document["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return found


def _body(document: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[Field]:
    told: Mapping[str, Any] = next(iter(content.values()), {})
    node = _resolve(document, told.get("schema", {}))
    for name, field in node.get("properties", {}).items():
        if not field.get("readOnly"):
            required = name in node.get("required", ())
            yield Field(name, "", _type(document, field), field.get("description", ""), is_required=required)


def _parameters(document: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[Field]:
    for one in told.get("parameters", ()):
        yield Field(
            one["name"],
            one["in"],
            _type(document, one["schema"]),
            one.get("description", ""),
            is_required=bool(one.get("required")),
        )


def _answers(document: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[Answer]:
    for status, answer in sorted(told["responses"].items()):
        if status == "default":
            continue
        for media, content in answer.get("content", {}).items() or [("", {})]:
            yield Answer(status, media, tuple(_unfolded(document, content.get("schema", {}), "", ())))


def _unfolded(document: Mapping[str, Any], node: Mapping[str, Any], at: str, above: tuple[int, ...]) -> Iterator[Field]:
    """Yield the fields of an answer, those of objects inside it behind a dot."""
    resolved = _resolve(document, node)
    if id(resolved) in above or len(above) >= DEPTH:
        return
    for name, field in resolved.get("properties", {}).items():
        yield Field(f"{at}{name}", "", _type(document, field), field.get("description", ""))
        inner, mark = _resolve(document, field), "."
        if inner.get("type") == "array":
            inner, mark = _resolve(document, inner.get("items", {})), "[]."
        yield from _unfolded(document, inner, f"{at}{name}{mark}", (*above, id(resolved)))


def _headers(document: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[Field]:
    headers = {name: one for answer in told["responses"].values() for name, one in answer.get("headers", {}).items()}
    for name, one in headers.items():
        found = document["components"]["headers"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        yield Field(name.lower(), "", "", found.get("description", ""))


def _type(document: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    resolved = _resolve(document, node)
    if "enum" in resolved:
        return ", ".join(f"`{value}`" for value in resolved["enum"] if value is not None) or "null"
    if "const" in resolved:
        return f"`{resolved['const']}`"
    if "anyOf" in resolved or "oneOf" in resolved:
        several = resolved.get("anyOf", resolved.get("oneOf", ()))
        return " or ".join(dict.fromkeys(_type(document, one) for one in several))
    if resolved.get("type") == "array":
        return f"list of {_type(document, resolved.get('items', {}))}"
    kind = resolved.get("type")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    return str(resolved.get("format") or kind or "any")


_ROW = re.compile(r"^\|(?: (\d{3}) \|)? ((?:`\w+`(?:, )?)+) \| (.+) \|$")


@cache
def error_sections() -> Mapping[str, tuple[Code, ...]]:
    """Return the codes of the page on errors by its sections."""
    found: dict[str, list[Code]] = {}
    title = ""
    for line in PAGES["errors"][1].path.read_text().splitlines():
        if line.startswith("## "):
            title = line[3:]
        elif row := _ROW.match(line):
            codes = re.findall(r"`(\w+)`", row[2])
            found.setdefault(title, []).extend(Code(row[1] or "", code, row[3]) for code in codes)
    return {name: tuple(codes) for name, codes in found.items()}


def _errors(endpoint: Endpoint | None, path: str, method: str) -> Iterator[tuple[str, tuple[Code, ...]]]:
    """Yield the sections of errors that an endpoint can answer with, by what it is declared to do."""
    sections = error_sections()
    wanted = ["Key and caller"] if path != "/health" else []
    if method in ("post", "patch", "put"):
        wanted.append("The body")
    if endpoint is not None:
        if endpoint.work is not Work.NOTHING:
            wanted += ["Model and route", "Rates and places"]
        if endpoint.work is Work.GENERATES:
            wanted += ["Credit", "The answer's form", "The engine"]
        if endpoint.keeps:
            wanted.append("Idempotency keys")
    for part, title in (
        ("responses", "Stored responses and websockets"),
        ("files", "Files"),
        ("batches", "Batches"),
        ("adapters", "Adapters"),
        ("usage", "Other objects"),
    ):
        if path.startswith(f"/v1/{part}"):
            wanted.append(title)
    for title in [*wanted, "Connections and HTTP", "The server"]:
        yield title, sections[title]


def _limits(endpoint: Endpoint | None, method: str) -> Iterator[str]:
    if endpoint is None:
        yield "Calls of the management API are limited by the minute, for each tenant."
    if method in ("post", "patch", "put"):
        what = "An uploaded file" if endpoint is not None and endpoint.form is not None else "A body"
        most = (
            settings.SLUICE_MAX_FILE_BYTES if endpoint is not None and endpoint.form else settings.SLUICE_MAX_BODY_BYTES
        )
        yield f"{what} has at most {most >> 20} MiB; JSON nests at most 64 levels."
    if endpoint is not None and endpoint.work is not Work.NOTHING:
        yield "A request counts in the plan's and the key's rate of requests."
    if endpoint is not None and endpoint.work is Work.GENERATES:
        yield "A request takes a place among those that the plan runs at the same time, or waits for one."
        yield "Credit is held and charged for a request; budgets bound what may be spent."
    if endpoint is not None and endpoint.keeps:
        yield "An `Idempotency-Key` stands for its answer for 24 hours."
