"""The clients' own environments, made under var/conformance from exact versions; never those of the repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WHERE = Path(os.environ.get("SLUICE_CONFORMANCE", ROOT / "var/conformance"))


@dataclass(frozen=True)
class Ready:
    """How an environment's programs are started, and where their packages are."""

    command: tuple[str, ...]
    folder: Path

    def version_of(self, package: str) -> str:
        """The version of a package that is installed there."""
        manifest = self.folder / "node_modules" / package / "package.json"
        if manifest.exists():
            return re.findall(r'"version": *"([^"]+)"', manifest.read_text())[0]
        paths = [str(path) for path in self.folder.glob("lib/python*/site-packages")]
        return next(found.version for found in metadata.distributions(name=package, path=paths))


def ready(name: str) -> Ready | None:
    """Make the environment of that name where it isn't; None where its packages, or Node.js, can't be had."""
    try:
        return _node() if name == "node" else _python(name)
    except subprocess.CalledProcessError as error:
        print(f"{name}: {error}", flush=True)
        return None


def _python(name: str) -> Ready:
    """Make the environment of constraints/NAME.txt, which says every package, or take the one that was made of it."""
    folder, listed = WHERE / name, HERE / "constraints" / f"{name}.txt"
    program = folder / "bin/python"
    if not _is_made(folder, listed):
        print(f"installing the clients of {listed.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [program, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "-r", listed]
        subprocess.run(install, check=True)
        _note(folder, listed)
    return Ready((str(program),), folder)


def _node() -> Ready | None:
    """Make the environment of node/package-lock.json; None without Node.js. The programs are beside its packages."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        return None
    folder, listed = WHERE / "node", HERE / "node/package-lock.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not _is_made(folder, listed):
        print(f"installing the clients of {listed.name}", flush=True)
        for file in (listed, HERE / "node/package.json"):
            shutil.copy(file, folder)
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
        _note(folder, listed)
    for file in (HERE / "node").glob("*.mjs"):
        shutil.copy(file, folder)
    return Ready((program,), folder)


def _is_made(folder: Path, listed: Path) -> bool:
    made = folder / "made-of"
    return made.exists() and made.read_text() == _digest(listed)


def _note(folder: Path, listed: Path) -> None:
    (folder / "made-of").write_text(_digest(listed))


def _digest(listed: Path) -> str:
    return hashlib.sha256(listed.read_bytes()).hexdigest()
