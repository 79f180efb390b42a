"""What the documents for operators claim can be looked up: each file and test that they name exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"def (test_\w+)")
DOCUMENTS = ["SECURITY.md", "UPGRADING.md", "docs/operations.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_is_there(document):
    text = (ROOT / document).read_text()
    named = re.findall(r"(?<![\w/])((?:tests|docs|deploy|constraints)/[\w./-]*\w)(?:::(\w+))?", text)
    assert named
    for path, test in named:
        if "VERSION" in path:
            continue
        assert (ROOT / path).exists(), path
        if test:
            assert re.search(rf"def {test}\b", (ROOT / path).read_text()), f"{path}::{test}"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / document).parent.joinpath(link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_and_commands_that_a_document_names_exist(document):
    text = (ROOT / document).read_text()
    settings = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    named = set(re.findall(r"\b((?:SLUICE_[A-Z_]*[A-Z]|REDIS_URL|DATABASE_URL))\b", text))
    assert {name.removesuffix("_FILE") for name in named} <= settings
    commands = {path.stem for app in ("operation", "billing") for path in ROOT.glob(f"{app}/management/commands/*.py")}
    own = {"migrate", "check", "createsuperuser"}
    assert set(re.findall(r"manage\.py (\w+)", text)) <= commands | own


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_document_gives_a_backup_a_name_that_is_taken_the_second_time(document):
    targets = re.findall(r"manage\.py backup ([^\s`]+)", (ROOT / document).read_text())
    assert [target for target in targets if target.endswith(".gz")] == []


def test_each_attack_that_the_page_on_isolation_names_is_tried():
    tried = {name for path in (ROOT / "tests").rglob("test_*.py") for name in TEST.findall(path.read_text())}
    tried |= set(TEST.findall((ROOT / "tests/billing/limits/contract.py").read_text()))
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/isolation.md").read_text()))
    assert len(named) > 30
    assert named <= tried


def test_documents_say_the_same_of_pythons_versions():
    """Which have to work, and that the suite is run by the oldest of them alone."""
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    told = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "UPGRADING.md")}
    assert len({*(found for text in told.values() for found in re.findall(rf"\b{oldest} to 3\.\d+", text))}) == 1
    [row] = re.findall(r"^\| Python \|.*$", told["UPGRADING.md"], re.MULTILINE)
    assert "have to work" in row
    assert f"the suite is run by {oldest} alone" in row
