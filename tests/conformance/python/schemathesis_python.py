"""schemathesis over our own OpenAPI document: whatever it makes of it, no answer is a 5xx.

It is told the models, files, batches, responses and keys that there are, so that not all it asks ends at an unknown
one. OpenAI's own document (OPENAI_DOCUMENT, see openai_document.py) is that of /v1/organization.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import requests
from lines import BASE_URL, KEY, URL, line, run

SECONDS = 60  # for each part
ADMIN_KEY = os.environ["SLUICE_ADMIN_KEY"]
COPY = os.environ.get("OPENAI_DOCUMENT")
MODELS = ["talks", "calls", "writes-json", "thinks", "embeds", "smollm2-135m-instruct", "all-minilm-l6-v2", "nothing"]
# 501 is what /v1/organization answers where OpenAI has something that Sluice hasn't.
CONFIG = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "501"]\n'
LIMITS = {
    "ChatRequest": "max_completion_tokens",
    "CompletionRequest": "max_tokens",
    "MessageRequest": "max_tokens",
    "ResponseRequest": "max_output_tokens",
}
METHODS = {"get", "post", "put", "patch", "delete"}
EACH = 6  # things of a kind, of which some are soon deleted


def document() -> dict[str, Any]:
    """Our document, in which requests name models and things that there are."""
    with urllib.request.urlopen(f"{URL}/api/schema/?format=json") as answer:
        found = json.load(answer)
    for name, schema in found["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": MODELS}
        if limit := LIMITS.get(name):  # SmolLM2 would otherwise write until its context is full
            schema["properties"][limit] = {"type": "integer", "minimum": 1, "maximum": 64}
            schema["required"] = [*schema.get("required", ()), limit]
    files, batches, stored, keys = things()
    found["components"]["schemas"]["BatchRequest"]["properties"]["input_file_id"] = {"enum": files}
    found["components"]["schemas"]["ResponseRequest"]["properties"]["previous_response_id"] = {"enum": [None, *stored]}
    for start, ids in (
        ("/v1/files/", files),
        ("/v1/batches/", batches),
        ("/v1/responses/", stored),
        ("/api/v1/keys/", keys),
    ):
        give(found, start, "id", [*ids, "nothing"])
    return found


def things() -> tuple[list[str], ...]:
    """The ids of some files, batches, stored responses and keys, made now."""
    body = {"model": "talks", "messages": [{"role": "user", "content": "Oslo?"}]}
    row = json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body})
    files, batches, stored, keys = [], [], [], []
    for _ in range(EACH):
        files.append(asked("post", "/v1/files", files={"file": ("lines.jsonl", row)}, data={"purpose": "batch"})["id"])
        batch = {"input_file_id": files[-1], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batches.append(asked("post", "/v1/batches", json=batch)["id"])
        stored.append(asked("post", "/v1/responses", json={"model": "talks", "input": "Oslo?", "store": True})["id"])
        keys.append(asked("post", "/api/v1/keys/", ADMIN_KEY, json={"name": "fuzzed"})["id"])
    return files, batches, stored, keys


def asked(method: str, path: str, key: str = KEY, **more: Any) -> Any:
    """The JSON of an answer that is none of the fuzzer's."""
    answer = requests.request(method, URL + path, headers={"authorization": f"Bearer {key}"}, timeout=30, **more)
    answer.raise_for_status()
    return answer.json()


def give(found: dict[str, Any], start: str, name: str, ids: list[str]) -> None:
    """Let the path parameter `name` of the paths that begin with `start` be one of `ids`."""
    for path, operations in found["paths"].items():
        if path.startswith(start):
            for method in METHODS & set(operations):
                for parameter in operations[method].get("parameters", ()):
                    if (parameter.get("in"), parameter.get("name")) == ("path", name):
                        parameter["schema"] = {"enum": ids}


def fuzz(found: dict[str, Any], paths: str, *, url: str = URL, key: str = KEY) -> None:
    """Try the operations of `paths`, a regular expression; raise the answers with 5xx."""
    with tempfile.TemporaryDirectory(prefix="conformance-schemathesis-") as folder:
        schema = Path(folder) / "schema.json"
        schema.write_text(json.dumps(found))
        (schema.parent / "schemathesis.toml").write_text(CONFIG)
        command = [Path(sys.executable).with_name("schemathesis"), "run", schema, "--url", url, "--no-color"]
        command += [
            "--header",
            f"Authorization: Bearer {key}",
            "--include-path-regex",
            paths,
            "--checks",
            "not_a_server_error",
        ]
        command += ["--max-time", str(SECONDS), "--max-examples", "40", "--generation-deterministic"]
        command += ["--phases", "examples,coverage,fuzzing", "--warnings", "off", "--request-timeout", "60"]
        command += ["--suppress-health-check", "all", "--continue-on-failure", "--no-shrink"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@line("no 5xx: /v1")
def data_plane():
    fuzz(document(), "^/v1/")


@line("no 5xx: /api")
def management():
    fuzz(document(), "^/api/")
    fuzz(document(), "^/api/v1/keys/", key=ADMIN_KEY)


if COPY is not None:

    @line("no 5xx: /v1/organization, by OpenAI's document")
    def organization():
        found = json.loads(Path(COPY).read_text())
        projects = [one["id"] for one in asked("get", "/v1/organization/projects", ADMIN_KEY)["data"]]
        give(found, "/organization/projects/", "project_id", [*projects, "nothing"])
        fuzz(found, "^/organization/", url=BASE_URL, key=ADMIN_KEY)


if __name__ == "__main__":
    run()
