"""Commands to paste that ask a model, with the reader's own base address."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from inference.types import Kind

_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}]}
_ASKED: dict[Kind, tuple[str, dict[str, Any]]] = {
    Kind.CHAT: ("chat/completions", _CHAT),
    Kind.EMBEDDING: ("embeddings", {"input": "A sentence to find again."}),
    Kind.SCORE: ("rerank", {"query": "Who sells apples?", "documents": ["A greengrocer.", "A smith."]}),
    Kind.CLASSIFICATION: ("classify", {"input": "Where is my parcel?", "labels": ["delivery", "payment"]}),
}
_PYTHON = {
    Kind.CHAT: """answer = client.chat.completions.create(
    model={model}, messages=[{{"role": "user", "content": "Hello!"}}]
)
print(answer.choices[0].message.content)""",
    Kind.EMBEDDING: """answer = client.embeddings.create(model={model}, input="A sentence to find again.")
print(answer.data[0].embedding[:4])""",
}


@dataclass(frozen=True, slots=True)
class Snippets:
    """One request as a command and as a program."""

    curl: str
    python: str


def snippets_of(model: str, kinds: Collection[str], base_url: str) -> Snippets:
    """Return how to ask the model for the first kind of request that it serves."""
    kind = next((one for one in _ASKED if one in kinds), Kind.CHAT)
    path, asked = _ASKED[kind]
    body = json.dumps({"model": model, **asked}).replace("'", "'\\''")
    curl = (
        f'curl {base_url}/{path} \\\n  -H "Authorization: Bearer $SLUICE_API_KEY" '
        f"-H \"Content-Type: application/json\" \\\n  -d '{body}'"
    )
    if kind in _PYTHON:
        head = f'import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="{base_url}", '
        code = _PYTHON[kind].format(model=json.dumps(model))
        return Snippets(curl, f'{head}api_key=os.environ["SLUICE_API_KEY"])\n{code}')
    post = f'    "{base_url}/{path}",\n    headers={{"Authorization": "Bearer " + os.environ["SLUICE_API_KEY"]}},\n'
    sent = json.dumps({"model": model, **asked})
    return Snippets(
        curl, f"import os, requests\n\nanswer = requests.post(\n{post}    json={sent},\n)\nprint(answer.json())"
    )
