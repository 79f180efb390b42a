"""``python -m inference.sources.fetch``: bring a model to this machine and print a description of it as JSON.

A process of its own, since converting GGUF needs torch, which its caller, a management command, doesn't import.
"""

from __future__ import annotations

import argparse
import json
import sys
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

    A line ``{"doing": …}`` is printed before each long operation; the result is the last line.
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

            folder = resolve(arguments.source, arguments.home / "models", _report)
            answer = describe(folder, name_of(arguments.source))
    except ModelRefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _report(doing: str) -> None:
    sys.stdout.write(json.dumps({"doing": doing}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
