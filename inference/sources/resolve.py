"""From a model's source (hub id, folder, GGUF file) to a folder with config, safetensors and tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from inference.errors import ModelRefusedError

HUB_ID = re.compile(r"^(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
WANTED = ["*.json", "*.safetensors", "*.txt", "*.jinja", "tokenizer.model", "*.tiktoken"]


def resolve(source: str, cache: Path, report: Callable[[str], None] = lambda _: None) -> Path:
    """Return a folder in transformers' layout for `source`: a folder, a GGUF file, or a hub id (`owner/name@revision`).

    A GGUF file is turned into a dense copy under `cache`, once per content; a hub model is downloaded under `cache`,
    and what is there already is used when the hub can't be reached. `report` is called with a line before a
    long operation. Raise ModelRefusedError with the reason.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            found = f"{len(files)} GGUF files" if files else "no config.json and no GGUF file"
            raise ModelRefusedError(f"{source} holds {found}")
        path = files[0]
    if path.is_file():
        from inference.sources.gguf import dense_copy

        return dense_copy(path, cache / "gguf", report)
    match = HUB_ID.match(source)
    if match is None:
        raise ModelRefusedError(f"{source} is no folder, no GGUF file and no hub id (owner/name)")
    report(f"downloading {source} from the hub, or what has changed of it")
    return _from_hub(match["repo"], match["revision"], cache / "hub")


def _from_hub(repo: str, revision: str | None, cache: Path) -> Path:
    """Download the repository's model files, or find an earlier download of them."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo, revision=revision, cache_dir=cache, allow_patterns=WANTED))
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors, bad names ValueErrors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelRefusedError(f"{repo} can't be had from the hub: {reason}") from error
    if not (folder / "config.json").is_file():
        raise ModelRefusedError(f"{repo} has no config.json")
    return folder
