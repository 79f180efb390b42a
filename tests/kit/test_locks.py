"""What is installed is named exactly, file by file; what runs in containers, by digest; and `make lock` writes both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import lock

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DIGEST = "sha256:" + "0123456789abcdef" * 4
OTHER = "sha256:" + "fedcba9876543210" * 4
PYTHONS = ("3.11.7", "3.12.15", "3.13.9", "3.14.1")


def locked(*names):
    """What the locks of that name say, each as a requirement."""
    texts = [(CONSTRAINTS / f"{name}.txt").read_text() for name in names]
    return [Requirement(first.removesuffix("\\")) for text in texts for first in lock.blocks(text)]


def there(requirements, name, python):
    """The versions of a package that are installed on Linux by that Python."""
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0], "sys_platform": "linux"}
    found = [each for each in requirements if canonicalize_name(each.name) == name]
    return {
        specifier.version
        for each in found
        if each.marker is None or each.marker.evaluate(environment)
        for specifier in each.specifier
    }


@pytest.mark.parametrize("file", sorted(CONSTRAINTS.glob("*.txt")), ids=lambda file: file.stem)
def test_each_line_is_a_version_with_hashes_and_names_no_place(file):
    text = file.read_text()
    assert "://" not in text
    assert not re.search(r"(^|\s)(/|file:|--(extra-)?index-url|--find-links)", text)
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==[^\s;]+( ; .*?)?( ?--hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("extras", "files"),
    [
        (("gateway", "otel"), ("gateway",)),
        (("engine",), ("gateway", "engine", "torch")),
        (("dev",), ("gateway", "engine", "dev")),
    ],
)
def test_what_pyproject_asks_for_is_locked_within_its_ranges(python, extras, files):
    requirements = locked(*files)
    for extra in extras:
        for wanted in map(Requirement, PROJECT["project"]["optional-dependencies"][extra]):
            [version] = there(requirements, canonicalize_name(wanted.name), python)
            assert version in wanted.specifier, wanted


def test_what_builds_our_package_is_locked_with_it():
    [wanted] = map(Requirement, PROJECT["build-system"]["requires"])
    [version] = there(locked("gateway"), wanted.name, PYTHONS[0])
    assert version in wanted.specifier


@pytest.mark.parametrize("python", PYTHONS)
def test_the_files_agree_on_each_version(python):
    requirements = locked("gateway", "engine", "torch", "cuda", "dev")
    for name in {canonicalize_name(each.name) for each in requirements}:
        assert len(there(requirements, name, python)) <= 1, name


def test_the_processors_build_of_torch_needs_nothing_of_cudas():
    names = {each.name for each in locked("gateway", "engine")}
    assert not {name for name in names if name.startswith(("nvidia", "cuda", "triton", "torch"))}
    assert {each.name for each in locked("cuda")} >= {"triton", "nvidia-cublas"}


@pytest.mark.parametrize(("file", "count"), [("Makefile", 3), ("Dockerfile", 5)])
def test_what_pip_installs_has_a_hash_but_our_own_package_and_a_drivers_torch(file, count):
    text = re.sub(r"\\\n\s*", "", (ROOT / file).read_text())
    assert "\nHASHED = --require-hashes --only-binary=:all:\n" in text or "HASHED" not in text
    steps = [step.strip() for step in re.findall(r"(?:pip|\(PIP\)|--quiet) install ([^&|;\n]*)", text)]
    assert len(steps) == count
    for step in steps:
        hashed = "--require-hashes" in step or "$(HASHED)" in step
        assert hashed or step.endswith(("--no-deps --no-build-isolation .", "'torch>=2.11,<2.14'")), step


@pytest.mark.parametrize(
    ("needs", "printed"),
    [
        (["sympy", 'nvidia-cublas==1; platform_system == "Linux"'], "-r constraints/cuda.txt"),
        (["sympy", "triton==3.7.1"], ""),
        ([], ""),
    ],
)
def test_cudas_libraries_are_installed_for_a_torch_that_asks_for_them(needs, printed, monkeypatch, capsys):
    show = "show: ; @printf %s '$(CUDA)'"
    command = ["make", "--no-print-directory", "--eval", show, "show"]
    source = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    monkeypatch.setattr("importlib.metadata.requires", {"torch": needs}.get)
    exec(source, {})
    assert capsys.readouterr().out.strip() == printed


def images(root=ROOT):
    """Every image that isn't ours, with its digest."""
    texts = [(root / name).read_text() for name in lock.IMAGES]
    return {match[2]: match[3] for text in texts for match in lock.IMAGE.finditer(text)}


def test_images_of_others_come_by_digest():
    assert {image.partition(":")[0] for image in images()} == {"python", "postgres", "redis", "caddy"}
    assert all(images().values())


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim-trixie AS base\nFROM base AS code\n")
    (tmp_path / "docker-compose.yml").write_text(
        f"x:\n  image: sluice-gateway\na:\n    image: postgres:17\nb:\n    image: redis:7-alpine@{DIGEST}\n"
        "c:\n    image: postgres:17\n"
    )
    return tmp_path


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A Docker that answers with the JSON of the file that is returned, and notes what it was asked."""
    programs = tmp_path / "programs"
    programs.mkdir()
    answer, asked = programs / "answer", programs / "asked"
    (programs / "docker").write_text(f'#!/bin/sh\necho "$*" >> {asked}\ncat {answer}\n')
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    answer.write_text(json.dumps({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": OTHER, "size": 9}))
    return answer, asked


def test_a_tag_without_a_digest_gets_the_one_that_docker_tells(checkout, docker):
    assert lock.lock_images(upgrade=False, root=checkout)
    assert images(checkout) == {"python:3.12-slim-trixie": OTHER, "postgres:17": OTHER, "redis:7-alpine": DIGEST}
    text = (checkout / "docker-compose.yml").read_text()
    assert text.count(f"postgres:17@{OTHER}\n") == 2
    assert "image: sluice-gateway\n" in text
    assert "FROM base AS code\n" in (checkout / "Dockerfile").read_text()
    assert docker[1].read_text().splitlines() == [
        "buildx imagetools inspect python:3.12-slim-trixie --format {{json .Manifest}}",
        "buildx imagetools inspect postgres:17 --format {{json .Manifest}}",
    ]


@pytest.mark.usefixtures("docker")
def test_an_upgrade_asks_for_every_tag_again(checkout):
    assert lock.lock_images(upgrade=True, root=checkout)
    assert set(images(checkout).values()) == {OTHER}


@pytest.mark.parametrize("said", ["", "Error: not found", '{"digest": "latest"}', "[]"])
def test_without_dockers_word_nothing_is_made_up(checkout, docker, said, capsys):
    docker[0].write_text(said)
    before = images(checkout)
    assert not lock.lock_images(upgrade=True, root=checkout)
    assert images(checkout) == before
    assert "postgres:17: Docker doesn't tell its digest" in capsys.readouterr().out


def test_without_docker_it_says_so_and_keeps_what_is_there(checkout, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not lock.lock_images(upgrade=False, root=checkout)
    assert images(checkout)["redis:7-alpine"] == DIGEST
    assert "Docker doesn't tell its digest" in capsys.readouterr().out


@pytest.fixture
def uv(tmp_path):
    """A uv whose answer, and exit status, stand in files."""
    (tmp_path / "uv").write_text(f"#!/bin/sh\ncat {tmp_path}/lock\nexit $(cat {tmp_path}/status)\n")
    (tmp_path / "uv").chmod(0o755)

    def answers(text, status=0):
        (tmp_path / "lock").write_text(text)
        (tmp_path / "status").write_text(str(status))
        return str(tmp_path / "uv")

    return answers


def test_the_hashes_of_torchs_cpu_build_come_from_its_index(uv):
    told = uv(f"torch==9.9.9+cpu \\\n    --hash={DIGEST} \\\n    --hash={OTHER}\n")
    assert lock.cpu_hashes(told, "9.9.9", "https://index.example", "") == {DIGEST, OTHER}


def test_they_stay_where_the_index_is_silent_but_never_for_another_version(uv):
    silent = uv("", status=1)
    known = f"torch==9.9.9 \\\n    --hash={DIGEST}\n"
    assert lock.cpu_hashes(silent, "9.9.9", "https://index.example", known) == {DIGEST}
    with pytest.raises(SystemExit, match=r"torch 9\.9\.10 is new"):
        lock.cpu_hashes(silent, "9.9.10", "https://index.example", known)


def test_it_is_a_program_with_a_help():
    command = [sys.executable, str(ROOT / "deploy/lock.py"), "--help"]
    assert "--upgrade" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
