"""vLLM's guidellm, on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lines import KEY, URL, check, line, run

TOKENIZER = os.environ.get("SLUICE_TOKENIZER")


def successful(route: str, *, stream: str = "true") -> int:
    """Run eight requests at once; return how many of them succeeded."""
    assert TOKENIZER, "there is no tokenizer on this machine: the first models' packages are missing"
    with tempfile.TemporaryDirectory(prefix="conformance-guidellm-") as folder:
        report = Path(folder) / "report.json"
        backend = f"kind=openai_http,target={URL},model=talks,api_key={KEY},request_format={route},stream={stream}"
        command = [Path(sys.executable).with_name("guidellm"), "run", "--disable-console", "--backend", backend]
        command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8"]
        command += ["--data", "kind=synthetic_text,prompt_tokens=40,output_tokens=16"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}", "--output", f"kind=json,path={report}"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-1500:]
        [benchmark] = json.loads(report.read_text())["benchmarks"]
        totals = benchmark["metrics"]["request_totals"]
        check(totals["errored"], 0)
        return totals["successful"]


@line("chat, streamed")
def chat():
    check(successful("/v1/chat/completions"), 8)


@line("chat, whole")
def whole():
    check(successful("/v1/chat/completions", stream="false"), 8)


@line("completions, streamed")
def completions():
    check(successful("/v1/completions"), 8)


@line("responses, streamed")
def responses():
    check(successful("/v1/responses"), 8)


if __name__ == "__main__":
    run()
