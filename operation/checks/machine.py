"""Checks of this machine: home, disk, settings, tenants' files, and what models need here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings
from django.core.checks import Error, Tags, Warning, run_checks  # noqa: A004 - Django's name
from django.core.checks.registry import registry
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, storages

from base.checks import Check, Finding, Severity
from base.home import LEAST_FREE, open_to_others
from fleet.worker_specs import WorkerSpecError, worker_spec
from gateway.runtime.readiness import DISK

COMPILE_SECONDS = 10.0
_PROOF = "checks/proof"


def _home(_: object) -> Iterator[Finding]:
    home: Path = settings.SLUICE_HOME
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"1")
    except OSError as error:
        yield Finding(f"{home} can't be written ({error.strerror})", _give_back(home))
        return
    yield Finding(f"{home} ({settings.SLUICE_ENV})")
    if exposed := [str(path) for path in open_to_others()]:
        mend = f"`chmod go-rwx {shlex.join(exposed)}`"
        yield Finding(f"other users of this machine may read {', '.join(exposed)}", mend)


def _give_back(folder: Path) -> str:
    """Return the command that lets this process's user write a folder."""
    path, us = shlex.quote(str(folder)), os.geteuid()
    if folder.exists() and folder.stat().st_uid == us:
        return f"`chmod u+rwx {path}`"
    return f"`{'sudo ' if us else ''}install -d -o {us} -m 0700 {path}`"


def _disk(_: object) -> Iterator[Finding]:
    free = shutil.disk_usage(settings.SLUICE_HOME).free
    mend = "".join(finding.mend for finding in DISK.look(None))
    yield Finding(f"{free >> 20} MiB free, {LEAST_FREE >> 20} needed", mend)


def _settings(_: object) -> Iterator[Finding]:
    # Without those that are of the code alone and load all of it.
    tags = registry.tags_available() - {Tags.urls, Tags.templates, Tags.admin}
    problems = [message for message in run_checks(tags=sorted(tags)) if isinstance(message, Error | Warning)]
    for problem in problems:
        is_meant = problem.id == "sluice.W002"  # SQLite in production, with which one machine may be content
        yield Finding(str(problem.msg), "" if is_meant else str(problem.hint or "see docs/settings.md"))
    if not problems:
        yield Finding("pass every check")


def _files(_: object) -> Iterator[Finding]:
    storage = storages["files"]
    local = Path(storage.location) if isinstance(storage, FileSystemStorage) else None
    where = str(local or settings.STORAGES["files"]["BACKEND"])
    try:
        name = storage.save(_PROOF, ContentFile(b"1"))
        try:
            with storage.open(name) as file:
                is_same = file.read() == b"1"
        finally:
            storage.delete(name)
    except Exception as error:  # noqa: BLE001 - a storage raises what it likes
        mend = "correct SLUICE_FILES_OPTIONS, or mend the storage that it names"
        if local is not None and isinstance(error, PermissionError):
            mend = _give_back(next(place for place in (local / "checks", local, *local.parents) if place.exists()))
        yield Finding(f"{where} can't be written: {' '.join(str(error).split())[:300]}", mend)
        return
    mend = "" if is_same else "let all processes reach the same storage (SLUICE_FILES_STORAGE, SLUICE_FILES_OPTIONS)"
    yield Finding(f"{where} {'takes files' if is_same else 'gives back other bytes than it took'}", mend)


def _engine(_: object) -> Iterator[Finding]:
    if lacking := [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]:
        mend = "`make setup` installs what the engine needs" if _runs_models() else ""
        yield Finding(f"{', '.join(lacking)}: not installed", mend)
    else:
        yield Finding("torch and transformers are installed")


def _runs_models() -> bool:
    """Return whether a worker of this machine's own node has models."""
    try:
        return bool(worker_spec("local").engines)
    except WorkerSpecError:  # the check of models tells it
        return False


def _compiler(_: object) -> Iterator[Finding]:
    """Compile an empty program, where a worker of this machine has models."""
    if not _runs_models():
        return
    wanted = shlex.split(os.environ.get("CC", "")) or ["cc" if shutil.which("cc") else "gcc"]
    with tempfile.TemporaryDirectory() as folder:
        compiled = [*wanted, "-x", "c", "-shared", "-fPIC", "-o", f"{folder}/proof.so", "-"]
        try:
            done = subprocess.run(  # noqa: S603 - the compiler that the operator's environment names
                compiled, input=b"int one;", capture_output=True, timeout=COMPILE_SECONDS, check=False
            )
            reason = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
    if reason:
        text = f"{wanted[0]} compiles nothing ({reason[:200]}): models on the CPU are three to five times slower"
        yield Finding(text, f"{_install()}, then start the worker again")
    else:
        yield Finding(f"{wanted[0]} compiles")


def _install() -> str:
    for manager, command in (
        ("apt-get", "apt-get install --yes gcc libc6-dev"),
        ("dnf", "dnf install --assumeyes gcc"),
    ):
        if shutil.which(manager):
            return f"`{command}`" if os.getuid() == 0 else f"`sudo {command}`"
    return "install gcc, or set CC to a C compiler"


CHECKS: tuple[Check[object], ...] = (
    Check(
        "home",
        "a byte can be written to SLUICE_HOME, which nobody else may read",
        Severity.CRITICAL,
        _home,
        hits="Nothing that Sluice makes can be kept: secrets, models, files.",
    ),
    replace(DISK, look=_disk, needs=("home",)),
    Check(
        "settings",
        "Django's and our own checks of the settings pass",
        Severity.WARNING,
        _settings,
        every_s=3600,
        hits="What the setting is for doesn't work as it is written.",
    ),
)
STANDING_ON_ROWS: tuple[Check[object], ...] = (
    Check(
        "files",
        "a byte of a tenant's file can be written, read and deleted",
        Severity.CRITICAL,
        _files,
        hits="Files, batches and adapters of tenants fail.",
    ),
    Check(
        "engine",
        "the packages that models need are here",
        Severity.WARNING,
        _engine,
        needs=("schema",),
        hits="Models of this machine's own worker don't load.",
    ),
    Check(
        "compiler",
        "a C compiler makes a program, where models run here",
        Severity.WARNING,
        _compiler,
        needs=("schema",),
        hits="Models on this machine's processor answer three to five times slower.",
    ),
)
