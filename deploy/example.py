"""Writes deploy/sluice.env.example anew from docs/settings.md: each setting with its meaning in short, and its default.

    python deploy/example.py

What every production has to say stands first, empty; all else is commented out, so that its default holds.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS, EXAMPLE = ROOT / "docs" / "settings.md", ROOT / "deploy" / "sluice.env.example"
_ROW = re.compile(r"^\| `([A-Z_]+)` \| (.*?) \| (.*) \|$")
_ASIDE, _LINK = re.compile(r" \(\[[^\]]+\]\([^)]*\)\)"), re.compile(r"\[([^\]]+)\]\([^)]*\)")

HEAD = """\
# The settings of an installation, for systemd (/etc/sluice/environment, mode 0600), `docker --env-file` or a shell.
# `manage.py check` says what of it can't be, what is unsafe in production and what is misspelt; docs/settings.md says
# more about each. NAME_FILE=/path in place of NAME=value takes the value from a file. A line with # in front does
# nothing: its default holds, which is the value that it shows, or is described in brackets.
"""
REQUIRED = {
    "SLUICE_ENV": "production",
    "SLUICE_SECRET_KEY": "",
    "SLUICE_BASE_URL": "",
    "SLUICE_TRUST_PROXY": "true",
    "DATABASE_URL": "",
    "SLUICE_EMAIL_URL": "",
}
"""What a production says, with the values that are no choice."""


def settings() -> dict[str, list[tuple[str, str, str]]]:
    """Return (name, default, meaning) of each setting, by the heading under which it is documented."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    heading = ""
    for line in SETTINGS.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif row := _ROW.match(line):
            found.setdefault(heading, []).append((row[1], row[2], row[3]))
    return found


def text() -> str:
    """Return the file's content."""
    rows = settings()
    by_name = {row[0]: row for part in rows.values() for row in part}
    lines = [HEAD, "# -- What a production has to say", ""]
    for name, value in REQUIRED.items():
        lines += [*_meaning(*by_name[name], is_told=True), f"{name}={value}", ""]
    for heading, part in rows.items():
        if others := [row for row in part if row[0] not in REQUIRED]:
            lines += [f"# -- {heading}", ""]
            for row in others:
                lines += [*_meaning(*row), f"#{row[0]}={_value(row[1])}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _value(default: str) -> str:
    """Return a default that is a value, nothing for one that is described."""
    found = re.match(r"`([^`]*)`", default)
    return found[1] if found and not found[1].startswith("SLUICE_") else ""


def _meaning(name: str, default: str, meaning: str, *, is_told: bool = False) -> list[str]:
    """Return the first sentence of what it means, as comments, with a default that is no value in brackets."""
    plain = _LINK.sub(r"\1", _ASIDE.sub("", meaning))
    first = re.split(r"(?<=[^.]\.) (?=[A-Z`])", plain)[0]
    described = _LINK.sub(r"\1", default).replace("`", "")
    if is_told or described != _value(default):
        first += f" [{described}]"
    return textwrap.wrap(first, 120, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


if __name__ == "__main__":
    EXAMPLE.write_text(text())
