"""A batch through real processes: uploaded at the gateway, run by the jobs, answered by the worker."""

from __future__ import annotations

import json
import time

import pytest
from openai import OpenAI

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_the_jobs_run_a_batch_through_the_gateway(stack):
    url = "/v1/chat/completions"
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    lines = [{"custom_id": f"c{number}", "method": "POST", "url": url, "body": body} for number in range(6)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    with OpenAI(api_key=stack.tenants["max"]["key"], base_url=f"{stack.base_url}/v1") as client:
        file = client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
        while batch.status not in {"completed", "failed"}:  # bounded by the test's timeout
            time.sleep(0.1)  # it asks as a client does
            batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 6), batch.errors
        output = client.files.content(batch.output_file_id).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in output] == [f"c{number}" for number in range(6)]
