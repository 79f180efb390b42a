"""``python -m inference.sources.fetch``: bring a model to this machine and print a description of it as JSON.

A process of its own, since converting GGUF needs torch, which its caller, a management command, doesn't import.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from inference.errors import ModelRefusedError
from inference.json_files import read_object


def name_of(source: str) -> str:
    """Return a model's default name: the folder's, the file's without its ending, or the hub id's without its owner."""
    path = Path(source).expanduser()
    if path.exists():
        return path.stem if path.is_file() else path.resolve().name
    return source.partition("@")[0].rpartition("/")[2]


def describe(folder: Path, name: str = "") -> dict[str, Any]:
    """Return name, folder, kinds and context length of the model in `folder`, read from its files.

    Raise ModelRefusedError when it is no causal language model, sentence-transformers folder, cross-encoder or
    classifier.
    """
    config = read_object(folder / "config.json")
    architectures = config.get("architectures") or []
    labels = config.get("id2label") or (0, 0)  # transformers' default is two
    pooled = (folder / "modules.json").is_file() or (folder / "1_Pooling").is_dir()
    if (folder / "label_head.json").is_file():
        kinds = ["classification"]
    elif pooled:
        kinds = ["embedding"]
    elif any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        kinds = ["chat"]
    elif any(name.endswith("ForSequenceClassification") for name in architectures):
        kinds = ["score"] if len(labels) == 1 else ["classification"]
    else:
        names = ", ".join(architectures) or "its config names no architecture"
        raise ModelRefusedError(f"{folder} is no causal language model: {names}")
    context = int(config.get("max_position_embeddings") or config.get("n_positions") or 2048)
    settings = folder / "sentence_bert_config.json"
    if pooled and settings.is_file():
        context = int(read_object(settings).get("max_seq_length") or context)
    return {"name": name or folder.name, "folder": str(folder.absolute()), "kinds": kinds, "context_length": context}


def main() -> int:
    """Fetch `source`, or the first models, into `home`; print the result, or the reason on standard error.

    A line ``{"doing": …}`` is printed before each long operation, ``{"bytes": …}`` every now and then during one: what
    has come since it began. The result is the last line.
    """
    parser = argparse.ArgumentParser(prog="python -m inference.sources.fetch")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--specialists", type=Path, help="the folder that describes those of the first run")
    parser.add_argument("source", help="hub id, folder or GGUF file; `first-models` for those of the first run")
    arguments = parser.parse_args()
    try:
        if arguments.source == "first-models":
            from inference.sources.first_models import install, missing, missing_specialists, specialists

            special = specialists(arguments.specialists)
            found = [describe(folder) for folder in install(arguments.home, special).values()]
            names = {model["name"] for model in found}
            lacking = {name: why for name, why in missing().items() if name not in names}
            lacking |= missing_specialists(special, names)
            pairs = [
                {"name": one.name, "base": one.base, "folder": str(one.folder)}
                for one in special
                if one.is_here and not one.is_merged and one.base in names
            ]
            answer: dict[str, Any] = {"models": found, "adapters": pairs, "missing": lacking}
        else:
            from inference.sources.resolve import resolve

            with _weighed(arguments.home / "models"):
                folder = resolve(arguments.source, arguments.home / "models", _report)
            answer = describe(folder, name_of(arguments.source))
    except ModelRefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _report(doing: str) -> None:
    _tell({"doing": doing})


def _tell(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


WEIGH_SECONDS = 2.0


@contextmanager
def _weighed(folder: Path) -> Iterator[None]:
    """Report meanwhile by how much the files in `folder` grow; whoever reads it sees too that this process lives."""
    ends = threading.Event()
    before = _size(folder)

    def weigh() -> None:
        while not ends.wait(WEIGH_SECONDS):
            try:
                _tell({"bytes": max(0, _size(folder) - before)})
            except OSError:  # who asked is gone: nobody takes what would come
                os._exit(1)

    scale = threading.Thread(target=weigh, daemon=True)
    scale.start()
    try:
        yield
    finally:
        ends.set()
        scale.join()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # moved to its place meanwhile
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


if __name__ == "__main__":
    sys.exit(main())
