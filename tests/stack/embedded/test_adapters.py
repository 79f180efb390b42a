"""A tenant's own adapters by a real worker: uploaded, served, deleted under a stream, and made again of others."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from base.http import open_directly
from tests.gateway.apis.files.test_files import TYPE, form
from tests.inference.adapting import merge, save_adapter
from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

NAME = "adapted/own"
QUESTION = "the quick brown fox and the end of the text " * 4  # of several blocks


@pytest.fixture(scope="module")
def tenant(stack):
    return stack.tenant("adapted", 10**10, adapters=1)


@pytest.fixture(scope="module")
def folders(stack, tmp_path_factory):
    """A base, two adapters of it, and the model that each makes of it, which are served beside it."""
    root = tmp_path_factory.mktemp("models")
    base = root / "tiny"
    base.mkdir()
    save_tiny("llama", base, vocab_size=save_tokenizer(base))
    found = {"tiny": base}
    for seed, name in enumerate(("first", "second")):
        found[name] = save_adapter(base, root / name, seed=seed)
        found[f"merged-{name}"] = merge(base, found[name], root / f"merged-{name}")
    for name in ("tiny", "merged-first", "merged-second"):
        stack.manage("models", "add", str(found[name]), "--name", name, "--options", '{"dtype": "float32"}')
    return found


def request(model, **more):
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **more}


def answer(stack, tenant, model):
    """The text and the number of its prompt's tokens that were in the cache."""
    url = f"{stack.base_url}/v1/chat/completions"
    while (page := ask(url, request(model), key=tenant["key"])).status in {404, 503}:
        time.sleep(0.05)  # the gateway follows the catalogue within a second; bounded by the test's timeout
    assert page.status == 200, page.text
    return page.json["choices"][0]["message"]["content"], page.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def make(stack, tenant, folder: Path) -> None:
    """Make the adapter as a tenant does, and wait until a worker has read it."""
    content = form(
        (folder / "adapter_model.safetensors").read_bytes(), filename="adapter_model.safetensors", purpose="adapter"
    )
    file = ask(f"{stack.base_url}/v1/files", content, key=tenant["key"], content_type=TYPE["content-type"])
    assert file.status == 200, file.text
    body = {
        "base": "tiny",
        "name": "own",
        "file_id": file.json["id"],
        "config": json.loads((folder / "adapter_config.json").read_text()),
    }
    made = ask(f"{stack.base_url}/v1/adapters", body, key=tenant["key"])
    assert (made.status, made.json.get("id")) == (200, NAME), made.text
    while (shown := ask(f"{stack.base_url}/v1/adapters/{NAME}", key=tenant["key"])).json["status"] == "loading":
        time.sleep(0.05)  # bounded by the test's timeout
    assert shown.json["status"] == "ready", shown.text


def test_an_adapter_is_its_merged_model_and_its_name_brings_nothing_back(stack, tenant, folders):
    make(stack, tenant, folders["first"])
    expected, _ = answer(stack, tenant, "merged-first")
    plain, _ = answer(stack, tenant, "tiny")
    assert answer(stack, tenant, NAME) == (expected, 0)  # nothing of the base's prefix
    again, cached = answer(stack, tenant, NAME)
    assert (again, cached > 0, again == plain) == (expected, True, False)

    asked = urllib.request.Request(
        f"{stack.base_url}/v1/chat/completions",
        json.dumps(request(NAME, stream=True, max_tokens=250)).encode(),
        {"authorization": f"Bearer {tenant['key']}", "content-type": "application/json"},
    )
    with open_directly(asked, timeout=200) as streamed:
        lines = [streamed.readline() for _ in range(8)]
        deleted = ask(f"{stack.base_url}/v1/adapters/{NAME}", key=tenant["key"], method="DELETE")
        assert deleted.status == 200, deleted.text
        lines += streamed.readlines()
    events = [line[6:].strip() for line in lines if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert "".join(choice["delta"].get("content") or "" for choice in choices).startswith(expected.rstrip("\ufffd"))

    make(stack, tenant, folders["second"])
    other, _ = answer(stack, tenant, "merged-second")
    assert other != expected
    assert answer(stack, tenant, NAME) == (other, 0)
