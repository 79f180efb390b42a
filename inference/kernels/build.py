"""Building the C sources beside this file into a shared library, once for each processor and state of the sources."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from inference.work_folders import forget_work_folders

# What each level is compiled for, the best first, and the processor's flags that it needs (as in /proc/cpuinfo).
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma", "bmi2", "f16c", "lzcnt")
_TILES = ("amx_tile", "amx_bf16", "amx_int8")
LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx512-amx": (
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        (*_AVX512, "avx512_vnni", "avx512_bf16", *_TILES),
    ),
    "avx512-bf16": (("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"), (*_AVX512, "avx512_vnni", "avx512_bf16")),
    "avx512-vnni": (("-march=x86-64-v4", "-mavx512vnni"), (*_AVX512, "avx512_vnni")),
    "avx512": (("-march=x86-64-v4",), _AVX512),
    "avx2": (("-march=x86-64-v3",), ("avx2", "fma", "bmi2", "f16c", "lzcnt")),
    "plain": ((), ()),
}
# No -ffast-math and no contraction: every copy of an inlined kernel has to compute the same bits.
FLAGS = ("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-w")
SECONDS = 1800  # a build takes seconds of a processor, and minutes of one that others use
NOTICE_SECONDS = 60
LEVEL_VARIABLE = "SLUICE_KERNEL_LEVEL"
SEAL_BYTES = 16
_WORK = ".building-"

log = logging.getLogger(__name__)


class BuildError(Exception):
    """The kernels can't be built here; the message is the reason, for operators."""


class LevelError(BuildError):
    """The environment asks for a level that this processor can't run."""


class CompilerRefusedError(BuildError):
    """The compiler ended with an error: an older one doesn't know the best levels."""


@cache
def tiles_are_permitted() -> bool:
    """Ask the system for the registers of tiles (AMX), as a process has to before any of its threads uses them.

    See "Using XSTATE features in user space applications" in Linux's documentation.
    """
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return what the processor can do, in the kernel's words; empty where it isn't told."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    words = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return frozenset(words) | ({"lzcnt"} if "abm" in words else set())


def best_level(flags: frozenset[str] | None = None) -> str:
    """Return the best level that a processor with `flags` (default: this one's, as the system permits) can run."""
    if flags is None:
        flags = processor_flags()
        if flags.issuperset(_TILES) and not tiles_are_permitted():
            flags = flags.difference(_TILES)
    return next(level for level, (_, needed) in LEVELS.items() if flags.issuperset(needed))


def wanted_level() -> str:
    """Return the level that SLUICE_KERNEL_LEVEL names, "" for the best; raise LevelError where it can't be had."""
    level = os.environ.get(LEVEL_VARIABLE, "")
    if level and level not in LEVELS:
        raise LevelError(f"{LEVEL_VARIABLE}={level} is none of {', '.join(LEVELS)}")
    if level and (missing := lacking(level)):
        raise LevelError(f"{LEVEL_VARIABLE}={level} needs what this processor hasn't: {missing}")
    return level


def lacking(level: str) -> str:
    """Return what of `level` this processor hasn't, as text; empty when it runs it."""
    return " ".join(sorted(set(LEVELS[level][1]) - processor_flags()))


def levels_below(level: str) -> list[str]:
    """Return the levels that a processor which runs `level` runs too, the best first."""
    names = list(LEVELS)
    return names[names.index(level) + 1 :]


def build(folder: Path, level: str = "", *, anew: bool = False) -> Path:
    """Return the library's file in `folder`, for `level` (default: this processor's best); build it if it isn't there
    whole, or if `anew`.

    Several processes may do that at once: the file appears complete or not at all, and what killed ones left there
    a day ago goes. Raise BuildError with the reason.
    """
    level = level or best_level()
    command, target = _planned(folder, level)
    try:
        forget_work_folders(folder, _WORK)
        if not anew and _is_whole(target):
            return target
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_WORK) as work:
            made = Path(work) / target.name
            _compile(
                [*command, *(str(source) for source in _sources() if source.suffix == ".c"), "-o", str(made), "-lm"]
            )
            with made.open("r+b") as file:
                file.write(_seal(file.read()))
            made.replace(target)
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror or error}") from error
    return target


def is_built(folder: Path) -> bool:
    """Return whether `folder` has the library that the environment asks for; raise BuildError where none can be had."""
    try:
        return _is_whole(_planned(folder, wanted_level() or best_level())[1])
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror or error}") from error


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.[ch]"))


def _planned(folder: Path, level: str) -> tuple[tuple[str, ...], Path]:
    """Return the command that builds the library for `level`, and its file, named by all that it is made of."""
    command = (*_compiler(), *FLAGS, *LEVELS[level][0])
    digest = hashlib.blake2b(repr((command, platform.machine())).encode(), digest_size=12)
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return command, folder / f"cpu-{level}-{digest.hexdigest()}.so"


def _compiler() -> list[str]:
    """Return the command of the system's C compiler, or of the one that CC names."""
    named = os.environ.get("CC", "")
    try:
        command = shlex.split(named) or ["cc" if shutil.which("cc") else "gcc"]
    except ValueError as error:
        raise BuildError(f"CC={named} is no command: {error}") from error
    if shutil.which(command[0]) is None:
        raise BuildError(f"there is no C compiler ({command[0]}): install gcc and libc6-dev")
    return command


def _compile(command: list[str]) -> None:
    """Run the compiler to its end, or end it with all that it started."""
    with subprocess.Popen(  # noqa: S603 - the compiler that the operator's environment names
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            words = _words(process, command[0])
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise BuildError(f"{command[0]} took more than {SECONDS} s") from error
            raise
    if process.returncode < 0:
        raise BuildError(f"{command[0]} was ended by {signal.Signals(-process.returncode).name}")
    if process.returncode:
        line = next((line for line in words.splitlines() if "error" in line), words.strip()[:200])
        raise CompilerRefusedError(f"{command[0]} failed: {line or f'exit status {process.returncode}'}")


def _words(process: subprocess.Popen[bytes], name: str) -> str:
    """Return what the compiler said when it has ended, and tell that it takes long; raise TimeoutExpired in the end."""
    notice = min(NOTICE_SECONDS, SECONDS)
    try:
        words = process.communicate(timeout=notice)[1]
    except subprocess.TimeoutExpired:
        log.warning("%s has compiled the kernels for more than %s s; models wait for them", name, notice)
        words = process.communicate(timeout=SECONDS - notice)[1]
    return words.decode(errors="replace")


def _seal(content: bytes) -> bytes:
    """Return what stands behind a library's own bytes, where loaders don't look: a file that was cut lacks it."""
    return hashlib.blake2b(content, digest_size=SEAL_BYTES).digest()


def _is_whole(file: Path) -> bool:
    """Whether the file is there as it was built: to load one that was cut can end the process."""
    if not file.is_file():
        return False
    content = file.read_bytes()
    return content[-SEAL_BYTES:] == _seal(content[:-SEAL_BYTES])
