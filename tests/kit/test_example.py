"""deploy/sluice.env.example: every documented setting, and what `check` says of it as it is, filled in or misspelt."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "deploy/sluice.env.example").read_text()
REQUIRED = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))


def checked(home, **filled):
    """The exit status of `check` with the example's lines, and what it says."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**kept, **REQUIRED, "SLUICE_HOME": str(home), **filled}
    command = [sys.executable, "manage.py", "check"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, set(re.findall(r"sluice\.[EW]\d+", done.stderr)), done.stderr


def test_it_is_as_the_settings_are_documented():
    assert runpy.run_path(str(ROOT / "deploy/example.py"))["text"]() == EXAMPLE, "run `python deploy/example.py`"
    documented = re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"^#?([A-Z_]+)=", EXAMPLE, re.MULTILINE)) == sorted(documented)


def test_check_names_what_has_to_be_filled_in_and_what_is_misspelt(tmp_path):
    code, found, said = checked(tmp_path)
    assert (code, found) == (os.EX_CONFIG, {"sluice.E003", "sluice.E007", "sluice.W001", "sluice.W002"})
    assert all(name in said for name, value in REQUIRED.items() if not value)
    filled = {
        "SLUICE_SECRET_KEY": "q8ZrT2vLx9Kc4WnBf7Hd0YsGm3Jp6AuE1iXoVtRbQzNl5wCk",
        "SLUICE_BASE_URL": "https://models.acme.test",
        "SLUICE_EMAIL_URL": "smtp+tls://user:password@host:587",
    }
    code, found, said = checked(tmp_path, **filled, SLUICE_MAX_BODY_BYTE="1", SLUICE_API_KEY="a client's")
    assert (code, found) == (0, {"sluice.W002", "sluice.W007"})
    assert "SLUICE_MAX_BODY_BYTE is no setting, and does nothing" in said
    assert "Did you mean SLUICE_MAX_BODY_BYTES?" in said
    assert "SLUICE_API_KEY" not in said
