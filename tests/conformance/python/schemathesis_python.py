"""schemathesis over our own OpenAPI document: whatever it makes of it, no answer is a 5xx.

It is told the models that there are, so that not all it asks ends at an unknown one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from lines import KEY, URL, line, run

SECONDS = 60  # for each part
MODELS = ["talks", "calls", "writes-json", "thinks", "embeds", "smollm2-135m-instruct", "all-minilm-l6-v2", "nothing"]


def document() -> dict[str, Any]:
    """Our document, in which requests name models that there are."""
    with urllib.request.urlopen(f"{URL}/api/schema/?format=json") as answer:
        found = json.load(answer)
    for name, schema in found["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": MODELS}
    return found


def fuzz(paths: str) -> None:
    """Try the operations of `paths`, a regular expression; raise the answers with 5xx."""
    with tempfile.TemporaryDirectory(prefix="conformance-schemathesis-") as folder:
        schema = Path(folder) / "schema.json"
        schema.write_text(json.dumps(document()))
        command = [Path(sys.executable).with_name("schemathesis"), "run", schema, "--url", URL, "--no-color"]
        command += [
            "--header",
            f"Authorization: Bearer {KEY}",
            "--include-path-regex",
            paths,
            "--checks",
            "not_a_server_error",
        ]
        command += ["--max-time", str(SECONDS), "--max-examples", "40", "--generation-deterministic"]
        command += ["--phases", "examples,coverage,fuzzing", "--warnings", "off", "--request-timeout", "30"]
        command += ["--suppress-health-check", "all", "--continue-on-failure", "--no-shrink"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@line("no 5xx: /v1")
def data_plane():
    fuzz("^/v1/")


@line("no 5xx: /api")
def management():
    fuzz("^/api/")


if __name__ == "__main__":
    run()
