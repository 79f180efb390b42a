"""docs/errors.md names every code that the front door can answer with."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = re.compile(
    r'(?:Refusal|_Denied)\(\s*\d{3},\s*"([a-z_]+)"|(?:EngineFault|RoutingError)\(\s*"([a-z_]+)"|code = "([a-z_]+)"'
)
INTERNAL = {"device_lost", "model_refused", "unprepared"}  # never reach a client under these names


def test_every_code_is_documented():
    documented = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/errors.md").read_text()))
    used = {
        code
        for package in ("gateway", "inference", "routing")
        for path in (ROOT / package).rglob("*.py")
        for match in CODE.findall(path.read_text())
        for code in match
        if code
    }
    assert "invalid_json" in used
    assert used - INTERNAL - documented == set()
