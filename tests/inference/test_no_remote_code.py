"""No checkpoint's own code is run: each loading by transformers has `trust_remote_code=False`."""

from __future__ import annotations

import ast
from pathlib import Path

import inference

LOADERS = {"from_pretrained", "from_config"}


def test_every_loading_by_transformers_refuses_remote_code() -> None:
    found = 0
    for path in Path(inference.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            named = [node.func, *node.args[:1]]  # `partial(X.from_pretrained, …)` as well
            if any(isinstance(each, ast.Attribute) and each.attr in LOADERS for each in named):
                found += 1
                said = {keyword.arg: keyword.value for keyword in node.keywords}
                value = said.get("trust_remote_code")
                assert isinstance(value, ast.Constant), f"{path}:{node.lineno}"
                assert value.value is False, f"{path}:{node.lineno}"
    assert found >= 5
