"""docs/errors.md names every code that the front door can answer with, and none besides."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = re.compile(
    r'(?:Refusal|_Denied)\(\s*\d{3},\s*"([a-z_]+)"|(?:EngineFault|RoutingError)\(\s*"([a-z_]+)"|code = "([a-z_]+)"'
)
PACKAGES = ("gateway", "inference", "routing", "billing", "control", "fleet", "tenancy")
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


def test_every_documented_code_is_there():
    rows = re.findall(r"^\|(?: \d{3} \|)? ((?:`\w+`(?:, )?)+) \| ", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    documented = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    written = {code for path in sources for code in re.findall(r"[\"']([a-z_]+)[\"']", path.read_text())}
    assert len(documented) > 100
    assert documented - written == set()
