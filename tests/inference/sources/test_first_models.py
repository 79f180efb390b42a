"""Specialists among the first models: made of the first two and of what a folder describes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference import work_folders
from inference.errors import ModelRefusedError
from inference.sources import first_models
from inference.sources.first_models import CHAT, EMBEDDING, specialists
from tests.first_models import DESK, DESK_LABELS, SPECIALISTS
from tests.fleet.adapters.files import save
from tests.inference.work_folders import leave

ADAPTER, MERGED = "some-fields", "some-labels"
DESCRIBED = f"""
[{MERGED}]
base = "{EMBEDDING}"
is_merged = true
[{ADAPTER}]
base = "{CHAT}"
is_merged = false
"""
WEIGHT = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with stand-ins of the first two models, without their packages and without specialists."""
    monkeypatch.setattr(first_models, "_installed_file", lambda *_: None)
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk/specialists.toml").write_text(DESCRIBED)
    for name in (CHAT, EMBEDDING):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    save_file({WEIGHT: torch.eye(4)}, tmp_path / "models" / EMBEDDING / "model.safetensors")
    return tmp_path


def train(home: Path) -> None:
    """Put what was trained where the code has it: for the labels pairs that add 2 to each weight."""
    save(home / "desk" / ADAPTER)
    labels = save(home / "desk" / MERGED)
    (labels / "label_head.json").write_text(json.dumps({"labels": ["billing", "returns"], "none": "other"}))
    save_file({"text.weight": torch.ones(2, 4)}, labels / "label_head.safetensors")
    module = f"base_model.model.{WEIGHT.removesuffix('.weight')}"
    pairs = {f"{module}.lora_A.weight": torch.ones(2, 4), f"{module}.lora_B.weight": torch.full((4, 2), 0.5)}
    save_file(pairs, labels / "adapter_model.safetensors")


@pytest.fixture
def special(home):
    return specialists(home / "desk")


def test_labels_are_merged_once_and_the_adapter_is_told(home, special):
    train(home)
    found = first_models.install(home, special)
    assert set(found) == {CHAT, EMBEDDING, MERGED}
    folder = found[MERGED]
    assert torch.equal(load_file(folder / "model.safetensors")[WEIGHT], torch.eye(4) + 2)
    assert json.loads((folder / "label_head.json").read_text()) == {"labels": ["billing", "returns"], "none": "other"}
    assert torch.equal(load_file(folder / "label_head.safetensors")["text.weight"], torch.ones(2, 4))
    assert [(one.name, one.base, one.folder, one.is_here) for one in special if not one.is_merged] == [
        (ADAPTER, CHAT, home / "desk" / ADAPTER, True)
    ]
    assert first_models.missing_specialists(special, found) == {}
    before = (folder / "model.safetensors").stat().st_ino
    assert first_models.install(home, special) == found
    assert (folder / "model.safetensors").stat().st_ino == before


def test_a_disk_without_room_is_named_and_nothing_is_made(home, special, monkeypatch):
    train(home)
    package = home / "package"
    package.mkdir()
    for name, size in (("model.gguf", 100 << 20), ("config.json", 50 << 20)):
        with (package / name).open("wb") as file:
            file.truncate(size)
    packaged = {first_models.CHAT_FILE: package / "model.gguf", first_models.EMBEDDING_FILE: package / "config.json"}
    monkeypatch.setattr(first_models, "_installed_file", lambda *file: packaged[file])
    (home / "models" / CHAT / "config.json").unlink()
    needed = 3 * 100 + 150 + 128  # the GGUF file's dense copy, the encoder with labels, and what is left free
    free = SimpleNamespace(free=(needed << 20) - 1)
    monkeypatch.setattr(work_folders.shutil, "disk_usage", lambda _: free)
    with pytest.raises(
        ModelRefusedError, match=rf"needs {needed} MiB of the disk of .*, which has {needed - 1} MiB free"
    ):
        first_models.install(home, special)
    assert {path.name for path in (home / "models").iterdir()} == {CHAT, EMBEDDING}
    free.free += 1
    with pytest.raises(ModelRefusedError, match="can't be read as GGUF"):  # it was tried
        first_models.install(home, special)


def test_without_weights_the_others_are_installed_and_it_says_why(home, special):
    found = first_models.install(home, special)
    assert set(found) == {CHAT, EMBEDDING}
    assert not any(one.is_here for one in special)
    lacking = first_models.missing_specialists(special, found)
    assert set(lacking) == {ADAPTER, MERGED}
    assert all("weights are not in this copy" in why for why in lacking.values())


def test_without_their_bases_it_says_which_are_missing(home, special):
    train(home)
    for name in (CHAT, EMBEDDING):
        (home / "models" / name / "config.json").unlink()
    found = first_models.install(home, special)
    assert found == {}
    lacking = first_models.missing_specialists(special, found)
    assert lacking == {
        ADAPTER: f"it is made of {CHAT}, which is missing",
        MERGED: f"it is made of {EMBEDDING}, which is missing",
    }


def test_a_merge_that_fails_leaves_nothing(home, special):
    train(home)
    (home / "desk" / MERGED / "adapter_config.json").write_text("{}")
    with pytest.raises(KeyError):
        first_models.install(home, special)
    assert {folder.name for folder in (home / "models").iterdir()} == {CHAT, EMBEDDING}


def test_what_killed_installations_left_goes_a_day_later(home, special):
    staying = leave(home / "models", ".making-")
    first_models.install(home, special)
    assert set((home / "models").iterdir()) == staying | {home / "models" / name for name in (CHAT, EMBEDDING)}


def test_where_nothing_is_described_there_are_none(home):
    assert specialists(None) == specialists(home) == ()


def test_the_desks_specialists_are_complete():
    assert {one.name: one.is_here for one in SPECIALISTS} == {DESK: True, DESK_LABELS: True}
    assert {one.base for one in SPECIALISTS} == {CHAT, EMBEDDING}
