"""What `make` tells who has little, and what it never deletes unasked: targets run in a copy of the Makefile."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile, a home with data, and what make makes."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("var/models/m", ".venv/bin", "build", ".mypy_cache"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("var/secret.key", "var/sluice.sqlite3"):
        (tmp_path / name).touch()
    return tmp_path


def make(folder, *arguments, **more):
    """What make says, and its exit status; it has no terminal unless `stdin` is one."""
    given = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
    done = subprocess.run(["make", *arguments], cwd=folder, env=given, text=True, check=False, timeout=100, **options)
    return done.returncode, done.stdout


def test_clean_never_touches_data(checkout):
    assert make(checkout, "clean") == (0, "")
    assert sorted(path.name for path in checkout.iterdir()) == ["Makefile", "var"]
    assert sorted(path.name for path in (checkout / "var").iterdir()) == ["models", "secret.key", "sluice.sqlite3"]


@pytest.mark.parametrize(("typed", "goes"), [("yes\n", True), ("y\n", False), ("\n", False)])
def test_purge_asks_at_a_terminal(checkout, typed, goes):
    main, side = pty.openpty()
    try:
        os.write(main, typed.encode())
        code, said = make(checkout, "purge", stdin=side)
    finally:
        os.close(side)
        os.close(main)
    assert str(checkout / "var") in said
    assert "ledger" in said
    assert ((code == 0), (checkout / "var").exists()) == (goes, not goes)
    assert ("nothing is deleted" in said) != goes


def test_purge_without_a_terminal_needs_to_be_told(checkout):
    code, said = make(checkout, "purge")
    assert (code, "make purge PURGE=yes" in said, (checkout / "var/secret.key").exists()) == (2, True, True)
    assert make(checkout, "purge", "PURGE=yes") == (0, "")
    assert not (checkout / "var").exists()


def test_purge_deletes_no_folder_that_is_no_home(checkout):
    (checkout / "var/secret.key").unlink()
    code, said = make(checkout, "purge", "PURGE=yes")
    assert (code, "is no home of Sluice: nothing is deleted" in said) == (2, True)
    assert (checkout / "var/sluice.sqlite3").exists()


@pytest.fixture
def bare(checkout):
    """It without an environment, and a function that runs `make setup` with a Python before which `code` was run."""
    shutil.rmtree(checkout / ".venv")
    for name in ("pyproject.toml", "constraints"):
        (checkout / name).symlink_to(ROOT / name)

    def setup(code, *more):
        (checkout / "sitecustomize.py").write_text(code)
        python = checkout / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={checkout} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        return make(checkout, "setup", f"PYTHON={python}", *more)

    return setup


def test_a_python_without_environments_names_the_package_that_has_them(bare, checkout):
    lacking = "import importlib.util as u; found = u.find_spec; u.find_spec = lambda n: n != 'ensurepip' and found(n)"
    code, said = bare(lacking)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert code == 2
    assert f"apt install python{version}-venv, then make again" in said
    assert "Traceback" not in said
    assert not list(checkout.glob(".venv*")), "nothing half made that the next try would take"


def test_a_disk_without_room_for_the_packages_is_named_first(bare, checkout):
    full = "import shutil; from types import SimpleNamespace as S; shutil.disk_usage = lambda _: S(free=300 << 20)"
    code, said = bare(full)
    assert (code, "3500 MiB of this disk, and 300 MiB are free" in said) == (2, True)
    assert not list(checkout.glob(".venv*"))


def test_both_answers_of_pip_are_shown_where_torch_cannot_be_had(bare, checkout):
    """Its folders are asked before its index: their answer may be the one that says what is wrong."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    environment = checkout / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"version = {version}.1\n")
    python = environment / "bin/python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo Python; exit;; *--no-index*) said="HASHES DIFFER";; esac\n'
        'echo "${said:-NO NETWORK}" >&2\nexit 1\n'
    )
    python.chmod(0o755)
    code, said = bare("")
    assert code == 2
    assert said.index("NO NETWORK") < said.index("torch could not be installed") < said.index("HASHES DIFFER")
