"""NVIDIA's aiperf, on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lines import KEY, URL, check, line, run

TOKENIZER = os.environ.get("SLUICE_TOKENIZER")


def profile(*arguments: str) -> dict:
    """Run a small profile; return the summary that it writes."""
    assert TOKENIZER, "there is no tokenizer on this machine: the first models' packages are missing"
    with tempfile.TemporaryDirectory(prefix="conformance-aiperf-") as folder:
        command = [Path(sys.executable).with_name("aiperf"), "profile", "--url", URL, "--api-key", KEY]
        command += ["--tokenizer", TOKENIZER, "--artifact-dir", folder, "--ui", "none", "--request-count", "8"]
        command += ["--concurrency", "2", "--isl", "40", "--osl", "16", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]
        [summary] = Path(folder).rglob("profile_export_aiperf.json")
        return json.loads(summary.read_text())


def all_well(*arguments: str) -> None:
    told = profile(*arguments)
    check((told["request_count"]["avg"], told.get("error_summary") or []), (8.0, []))


@line("chat, streamed")
def chat():
    all_well("--model", "talks", "--endpoint-type", "chat", "--streaming")


@line("chat, whole")
def whole():
    all_well("--model", "talks", "--endpoint-type", "chat")


@line("completions, streamed")
def completions():
    all_well("--model", "talks", "--endpoint-type", "completions", "--streaming")


@line("responses, streamed")
def responses():
    all_well("--model", "talks", "--endpoint-type", "responses", "--streaming")


@line("embeddings")
def embeddings():
    all_well("--model", "embeds", "--endpoint-type", "embeddings")


if __name__ == "__main__":
    run()
