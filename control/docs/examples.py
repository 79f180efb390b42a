"""Examples of an endpoint in curl, Python and JavaScript, made from its declaration, and run as they stand by a test.

`BASE` and the names `model-for-…` stand for the reader's base URL and models. What a request needs of an earlier one
(the id of a file) is a variable of the environment, as the key is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from control.api.data_plane import BASE, FORM, JSON
from inference.types import Kind

KEY, ADMIN_KEY = "SLUICE_API_KEY", "SLUICE_ADMIN_KEY"
MODEL_FOR = "model-for-{}"

# The variable that an id in a path is, by the path's beginning, and the operation whose answer has it.
_IDS = {
    "/v1/responses/": ("RESPONSE_ID", "responses"),
    "/v1/files/": ("FILE_ID", "files_create"),
    "/v1/batches/": ("BATCH_ID", "batches_create"),
    "/v1/adapters/": ("ADAPTER", "adapters_create"),
    "/v1/usage/": ("REQUEST_ID", "chat_completions"),
    "/api/v1/keys/": ("KEY_ID", "keys_create"),
    "/api/v1/budgets/": ("BUDGET_ID", "budgets_create"),
}
_IN_BODIES = {"file-id": ("FILE_ID", "files_create"), "file-0199": ("ADAPTER_FILE_ID", "files_create")}
_KINDS = {
    "embeddings": Kind.EMBEDDING,
    "embeddings_quote": Kind.EMBEDDING,
    "rerank": Kind.SCORE,
    "score": Kind.SCORE,
    "classify": Kind.CLASSIFICATION,
}
# What OpenAI's SDK calls an operation and shows of its answer; the others are asked by their paths.
_CALLS = {
    "chat_completions": ("chat.completions.create", ".choices[0].message.content"),
    "responses": ("responses.create", ".output_text"),
    "responses_show": ("responses.retrieve", ".status"),
    "responses_input_items": ("responses.input_items.list", ".data"),
    "responses_cancel": ("responses.cancel", ".status"),
    "completions": ("completions.create", ".choices[0].text"),
    "embeddings": ("embeddings.create", ".data[0].embedding[:4]"),
    "files_list": ("files.list", ".data"),
    "files_show": ("files.retrieve", ".filename"),
    "files_content": ("files.content", ".text"),
    "files_delete": ("files.delete", ".deleted"),
    "batches_create": ("batches.create", ".status"),
    "batches_list": ("batches.list", ".data"),
    "batches_show": ("batches.retrieve", ".status"),
    "batches_cancel": ("batches.cancel", ".status"),
    "models_list": ("models.list", ".data"),
    "models_show": ("models.retrieve", ".id"),
}
_ANTHROPIC = {
    "messages": ("messages.create", ".content[0].text"),
    "messages_count_tokens": ("messages.count_tokens", ".input_tokens"),
}
_BODIES: Mapping[str, Mapping[str, Any]] = {
    "keys_create": {"name": "ci", "scopes": ["chat"], "day_limit": 5_000_000},
    "keys_change": {"day_limit": 10_000_000},
    "keys_rotate": {"overlap_hours": 24},
    "projects_create": {"name": "Search"},
    "budgets_create": {"scope": "tenant", "window": "month", "limit": 50_000_000_000, "is_hard": False},
    "budgets_change": {"limit": 60_000_000_000},
    "vouchers_redeem": {"code": "XXXX-XXXX-XXXX-XXXX-XXXX"},
    "routes_explain": {"model": "auto", "text": "Translate this into French: good morning."},
}
"""Bodies of the management API's requests."""
_SESSIONS = {"session", "operatorSession"}  # what these alone let in has no example: they are a browser's
_FILES = {"application/octet-stream", "application/zip", "application/jsonl"}  # types of answers that are files
_LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": MODEL_FOR.format("chat"), "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16},
}


@dataclass(frozen=True, slots=True)
class Example:
    """A program that makes one request."""

    language: str
    title: str
    code: str


@dataclass(frozen=True, slots=True)
class Needed:
    """A variable that examples read, and the operation whose answer has its value; "" for a key."""

    variable: str
    source: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of an endpoint: its example body, and the variable of its path."""

    operation: str
    method: str
    path: str
    key: str
    body: Mapping[str, Any] | None
    is_form: bool
    is_binary: bool
    by_program: bool
    """Whether a key may make it, and not only somebody who is signed in."""

    @property
    def variable(self) -> str:
        """The variable that the path's id is."""
        found = (name for begins, (name, _) in _IDS.items() if self.path.startswith(begins))
        return next(found, "") if "{" in self.path else ""

    @property
    def needs(self) -> list[Needed]:
        """The variables that have to be set."""
        found = [Needed(self.key, "")] if self.key else []
        if self.variable:
            found.append(Needed(*next(told for begins, told in _IDS.items() if self.path.startswith(begins))))
        values = json.dumps(self.body)
        return found + [Needed(*told) for value, told in _IN_BODIES.items() if json.dumps(value) in values]


def asked_of(document_operation: Mapping[str, Any], method: str, path: str) -> Asked:
    """Return the request of an operation of the document."""
    name = document_operation["operationId"]
    path = path.replace("{month}", f"{timezone.now():%Y-%m}").replace("{form}", "jsonl")
    content = document_operation.get("requestBody", {}).get("content", {})
    schemes = {scheme for need in document_operation.get("security", ()) for scheme in need}
    key = KEY if schemes & {"inferenceKey", "managementKey"} else ADMIN_KEY if schemes else ""
    told = content.get(JSON, {})
    body = told.get("example", _BODIES.get(name))
    if body is not None and body.get("model") == "auto":
        body = {**body, "model": MODEL_FOR.format(_KINDS.get(name, Kind.CHAT).value)}
    answers = [answer.get("content", {}) for answer in document_operation["responses"].values()]
    is_binary = any(each.keys() & _FILES for each in answers)
    return Asked(
        name, method.upper(), path, key, body, FORM in content, is_binary, not schemes or not schemes <= _SESSIONS
    )


def examples_of(asked: Asked) -> tuple[Example, ...]:
    """Return the examples of a request."""
    return (
        Example("sh", "curl", _curl(asked)),
        Example("python", "Python", _python(asked)),
        Example("js", "JavaScript", _node(asked)),
    )


def _curl(asked: Asked) -> str:
    path = asked.path.replace("{id}", _id(asked, "${}", quoted=False))
    parts = [f'curl "{BASE}{path}"' if "$" in path else f"curl {BASE}{path}"]
    if asked.method not in ("GET", "POST") or (asked.method == "POST" and asked.body is None and not asked.is_form):
        parts[0] = f"curl -X {asked.method}{parts[0].removeprefix('curl')}"
    if asked.key:
        parts.append(f'-H "Authorization: Bearer ${asked.key}"')
    if asked.is_form:
        file = f"cat > requests.jsonl <<'END'\n{json.dumps(_LINE)}\nEND\n"
        return file + " \\\n  ".join([*parts, "-F purpose=batch", "-F file=@requests.jsonl"])
    if asked.is_binary:
        parts.append("-o answer.bin")
    if asked.body is not None:
        body = shlex.quote(_lines(asked.body))
        for value, (variable, _) in _IN_BODIES.items():
            body = body.replace(json.dumps(value), f"""\"'"${variable}"'\"""")
        parts += ["-H 'Content-Type: application/json'", f"-d {body}"]
    return " \\\n  ".join(parts)


def _lines(body: Mapping[str, Any], indent: str = "  ") -> str:
    """Return a body as JSON with a line for each of its fields."""
    told = [f"{indent}{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in body.items()]
    return "{\n" + ",\n".join(told) + f"\n{indent[2:]}}}"


def _id(asked: Asked, form: str, *, quoted: bool) -> str:
    if asked.variable:
        return form.format(asked.variable)
    model = MODEL_FOR.format("chat")
    return json.dumps(model) if quoted else model


def _python(asked: Asked) -> str:
    if asked.operation in _ANTHROPIC:
        call, shown = _ANTHROPIC[asked.operation]
        opened = (
            f'from anthropic import Anthropic\n\nclient = Anthropic(base_url="{BASE}", api_key=os.environ["{KEY}"])'
        )
        return _program(opened, f"client.{call}", _arguments(asked.body or {}), shown)
    root = "/api/v1" if asked.path.startswith("/api/v1") else "/v1" if asked.path.startswith("/v1") else ""
    key = f'os.environ["{asked.key}"]' if asked.key else '"none"'
    opened = f'from openai import OpenAI\n\nclient = OpenAI(base_url="{BASE}{root}", api_key={key})'
    identifier = [_id(asked, 'os.environ["{}"]', quoted=True)] if "{" in asked.path else []
    if asked.is_form:
        lines = f"lines = b'''{json.dumps(_LINE)}'''"
        upload = 'file = client.files.create(file=("requests.jsonl", lines), purpose="batch")\nprint(file.id)'
        return f"import os\n\n{opened}\n{lines}\n{upload}\n"
    if asked.operation in _CALLS:
        call, shown = _CALLS[asked.operation]
        return _program(opened, f"client.{call}", [*identifier, *_arguments(asked.body or {})], shown)
    path = asked.path.removeprefix(root)
    target = f'"{path}"'
    if identifier:
        target = f"""f"{path.replace("{id}", "{os.environ['" + asked.variable + "']}")}\""""
    body = [] if asked.body is None else [f"body={_value(asked.body)}"]
    kind = "cast_to=HttpxBinaryResponseContent" if asked.is_binary else "cast_to=object"
    if asked.is_binary:
        opened = opened.replace("from openai import OpenAI", "from openai import HttpxBinaryResponseContent, OpenAI")
    shown = ".status_code" if asked.is_binary else ""
    shown = ".response.status_code" if asked.is_binary else shown
    return _program(opened, f"client.{asked.method.lower()}", [target, *body, kind], shown)


def _program(opened: str, call: str, arguments: list[str], shown: str) -> str:
    inside = ", ".join(arguments)
    if len(inside) > 80 or "\n" in inside:
        inside = "".join(f"\n    {argument}," for argument in arguments) + "\n"
    begun = "import os\n\n" if "os.environ" in opened + inside else ""
    return f"{begun}{opened}\nanswer = {call}({inside})\nprint(answer{shown})\n"


def _arguments(body: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_value(value)}" for name, value in body.items()]


def _value(value: Any) -> str:
    text = _python_json(value)
    for told, (variable, _) in _IN_BODIES.items():
        text = text.replace(json.dumps(told), f'os.environ["{variable}"]')
    return text


def _python_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    words = {"true": "True", "false": "False", "null": "None"}
    return re.sub(r'("(?:[^"\\]|\\.)*")|\b(true|false|null)\b', lambda found: found[1] or words[found[2]], text)


def _node(asked: Asked) -> str:
    path = asked.path.replace("{id}", _id(asked, "${{process.env.{}}}", quoted=False))
    address = f"`{BASE}{path}`" if "$" in path else f'"{BASE}{path}"'
    headers = [f"Authorization: `Bearer ${{process.env.{asked.key}}}`"] if asked.key else []
    options, before = [f'method: "{asked.method}"'], ""
    if asked.body is not None:
        headers.append('"Content-Type": "application/json"')
        body = _lines(asked.body, "    ")
        for value, (variable, _) in _IN_BODIES.items():
            body = body.replace(json.dumps(value), f"process.env.{variable}")
        options.append(f"body: JSON.stringify({body})")
    if asked.is_form:
        before = (
            f"const lines = {json.dumps(json.dumps(_LINE))};\nconst form = new FormData();\n"
            'form.set("purpose", "batch");\nform.set("file", new Blob([lines]), "requests.jsonl");\n'
        )
        options.append("body: form")
    if headers:
        options.insert(1, f"headers: {{ {', '.join(headers)} }}")
    shown = (
        "answer.status" if asked.is_binary or asked.operation in {"health", "budgets_remove"} else "await answer.json()"
    )
    inside = "".join(f"\n  {option}," for option in options)
    return f"{before}const answer = await fetch({address}, {{{inside}\n}});\nconsole.log({shown});\n"
