"""Simon Willison's `llm`, on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lines import BASE_URL, KEY, check, line, run

SAYS = "Oslo lies by the sea."
MODELS = """
- {model_id: talks, model_name: talks, api_base: "%(url)s", api_key_name: sluice}
- {model_id: calls, model_name: calls, api_base: "%(url)s", api_key_name: sluice, supports_tools: true}
- {model_id: writes-json, model_name: writes-json, api_base: "%(url)s", api_key_name: sluice, supports_schema: true}
- {model_id: completes, model_name: talks, api_base: "%(url)s", api_key_name: sluice, completion: true}
"""
TOOL = 'def weather(city: str) -> str:\n    """The weather in a city."""\n    return "rain"\n'

home = Path(tempfile.mkdtemp(prefix="conformance-llm-"))
(home / "extra-openai-models.yaml").write_text(MODELS % {"url": BASE_URL})
(home / "keys.json").write_text(json.dumps({"sluice": KEY}))


def llm(*arguments: str) -> str:
    command = [Path(sys.executable).with_name("llm"), *arguments]
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@line("a prompt, streamed")
def streamed():
    check(llm("-m", "talks", "Where is Oslo?"), SAYS)


@line("a prompt, whole")
def whole():
    check(llm("-m", "talks", "--no-stream", "-s", "Be brief.", "-o", "temperature", "0", "Where is Oslo?"), SAYS)


@line("a conversation goes on")
def conversation():
    llm("-m", "talks", "Where is Oslo?")
    check(llm("-c", "And Bergen?"), SAYS)


@line("a tool is called")
def tool():
    assert "It rains in Oslo." in llm("-m", "calls", "--functions", TOOL, "How is Oslo?")


@line("a schema")
def schema():
    check(json.loads(llm("-m", "writes-json", "--schema", "name, people int", "Oslo")), {"name": "Oslo", "people": 7})


@line("a completion")
def completion():
    check(llm("-m", "completes", "Where is Oslo?"), SAYS)


if __name__ == "__main__":
    run()
