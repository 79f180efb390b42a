"""A model's files of JSON, which come from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.errors import ModelRefusedError


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in the file at `path`; raise ModelRefusedError where there is none."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelRefusedError(f"{path} is no JSON object")
    return value


def read_json(path: Path) -> Any:
    """Return the value in the file at `path`; raise ModelRefusedError where there is none, or one with half a character
    (a lone surrogate): names and labels in it are sent, and no message carries that.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:  # no text in UTF-8 is a ValueError, too
        raise ModelRefusedError(f"{path} can't be read as JSON: {error}") from error
    return value
