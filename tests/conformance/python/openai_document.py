"""Answers held to the OpenAPI document that OpenAI publishes, and streams to that of their events.

OPENAI_DOCUMENT names a copy of it, in JSON (github.com/openai/openai-openapi, MIT licence); none is kept here.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from lines import BASE_URL, KEY, line, run, skip
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

COPY = os.environ.get("OPENAI_DOCUMENT")
HI = [{"role": "user", "content": "Where is Oslo?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather in a city.", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": WEATHER}]}
RESPONSE_TOOLS = {"tools": [{"type": "function", "strict": False, **WEATHER}]}

if COPY is None:
    skip("OPENAI_DOCUMENT names no copy of OpenAI's OpenAPI document.")


def nullable(schema: Any) -> Any:
    """A schema that says so in the manner of OpenAPI 3.0, as the document partly does, in that of JSON Schema."""
    if isinstance(schema, list):
        return [nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: nullable(value) for name, value in schema.items()}
    return {"anyOf": [found, {"type": "null"}]} if found.pop("nullable", False) is True else found


document = nullable(json.loads(Path(COPY).read_text()))
print(json.dumps({"version": document["info"]["version"]}), flush=True)
for part in document["components"]["schemas"]["Response"]["allOf"]:
    # The API itself sends null until a response ends, for which the document has no word.
    if "usage" in part.get("properties", {}):
        part["properties"]["usage"] = nullable({**part["properties"]["usage"], "nullable": True})
registry = Registry().with_resource("urn:openai", Resource(document, DRAFT202012))


def asked(path: str, body: dict[str, Any] | None = None) -> bytes:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(BASE_URL + path, data, headers)) as answer:
        return answer.read()


def hold(path: str, content: bytes, *, method: str = "post", kind: str = "application/json") -> None:
    """Raise for the first values of an answer that its schema in the document doesn't allow."""
    wanted = document["paths"][path][method]["responses"]["200"]["content"][kind]["schema"]
    reference = wanted["$ref"].removeprefix("#")
    validator = Draft202012Validator({"$ref": f"urn:openai#{reference}"}, registry=registry)
    problems = [f"{error.json_path}: {told(error)}" for error in validator.iter_errors(json.loads(content))]
    assert not problems, "; ".join(problems[:4])


def told(error: Any) -> str:
    """What is wrong with a value; of a choice of schemas, what the nearest says."""
    deepest = max(error.context, key=lambda one: len(one.absolute_path), default=None)
    return error.message[:200] if deepest is None else f"{deepest.json_path}: {told(deepest)}"


def hold_stream(path: str, content: bytes) -> None:
    """The same for each event of a stream."""
    rows = [row[6:] for row in content.splitlines() if row.startswith(b"data: ") and row != b"data: [DONE]"]
    assert rows
    for row in rows:
        hold(path, row, kind="text/event-stream")


@line("chat: text, calls, reasoning, log-probabilities")
def chat():
    path = "/chat/completions"
    for more in ({"model": "talks"}, {"model": "calls", **TOOLS}, {"model": "thinks"}):
        hold(path, asked(path, {"messages": HI, **more}))
    smol = {"model": "smollm2-135m-instruct", "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "n": 2}
    hold(path, asked(path, {"messages": HI, **smol}))


@line("chat, streamed: text, calls, usage")
def chat_streamed():
    path = "/chat/completions"
    for more in ({"model": "talks", "stream_options": {"include_usage": True}}, {"model": "calls", **TOOLS}):
        hold_stream(path, asked(path, {"messages": HI, "stream": True, **more}))


@line("completions")
def completions():
    body = {"model": "smollm2-135m-instruct", "prompt": "Oslo is", "max_tokens": 4, "logprobs": 1}
    hold("/completions", asked("/completions", body))
    hold("/completions", asked("/completions", {"model": "talks", "prompt": ["a", "b"]}))


@line("responses: text, calls, reasoning")
def responses():
    path = "/responses"
    for more in ({"model": "talks"}, {"model": "calls", **RESPONSE_TOOLS}, {"model": "thinks"}):
        hold(path, asked(path, {"input": HI, **more}))


@line("responses, streamed: text, calls, reasoning")
def responses_streamed():
    path = "/responses"
    for more in ({"model": "talks"}, {"model": "calls", **RESPONSE_TOOLS}, {"model": "thinks"}):
        hold_stream(path, asked(path, {"input": HI, "stream": True, **more}))


@line("embeddings")
def embeddings():
    hold("/embeddings", asked("/embeddings", {"model": "embeds", "input": ["Oslo", "Bergen"]}))


@line("models")
def models():
    hold("/models", asked("/models"), method="get")


if __name__ == "__main__":
    run()
