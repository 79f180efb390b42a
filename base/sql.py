"""Statements kept as SQL: each file holds ``-- name: …`` lines, comments, and one statement per name."""

from __future__ import annotations

from pathlib import Path


def load(path: Path) -> dict[str, str]:
    """Return the statements of a file by name, without comments."""
    statements: dict[str, list[str]] = {}
    current: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-- name: "):
            current = statements.setdefault(line.removeprefix("-- name: ").strip(), [])
        elif line.strip() and not line.startswith("--"):
            current.append(line.strip())
    return {name: " ".join(lines).removesuffix(";") for name, lines in statements.items()}
