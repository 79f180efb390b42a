"""Building the C sources beside this file into a shared library, once for each processor and state of the sources."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

# What each level is compiled for, the best first, and the processor's flags that it needs (as in /proc/cpuinfo).
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "fma", "bmi2", "f16c", "lzcnt")
LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx512-bf16": (("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"), (*_AVX512, "avx512_vnni", "avx512_bf16")),
    "avx512-vnni": (("-march=x86-64-v4", "-mavx512vnni"), (*_AVX512, "avx512_vnni")),
    "avx512": (("-march=x86-64-v4",), _AVX512),
    "avx2": (("-march=x86-64-v3",), ("avx2", "fma", "bmi2", "f16c", "lzcnt")),
    "plain": ((), ()),
}
# No -ffast-math and no contraction: every copy of an inlined kernel has to compute the same bits.
FLAGS = ("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-w")
SECONDS = 300


class BuildError(Exception):
    """The kernels can't be built here; the message is the reason, for operators."""


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return what the processor can do, in the kernel's words; empty where it isn't told."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    words = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return frozenset(words) | ({"lzcnt"} if "abm" in words else set())


def best_level(flags: frozenset[str] | None = None) -> str:
    """Return the best level that a processor with `flags` (default: this one's) can run."""
    flags = processor_flags() if flags is None else flags
    return next(level for level, (_, needed) in LEVELS.items() if flags.issuperset(needed))


def build(folder: Path, level: str = "") -> Path:
    """Return the library's file in `folder`, for `level` (default: this processor's best); build it if it isn't there.

    Several processes may do that at once: the file appears complete or not at all. Raise BuildError with the reason.
    """
    level = level or best_level()
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("cc") or shutil.which("gcc") or "cc"]
    here = Path(__file__).parent
    sources = sorted(here.glob("*.[ch]"))
    command = (*compiler, *FLAGS, *LEVELS[level][0])
    digest = hashlib.blake2b(repr((command, platform.machine())).encode(), digest_size=12)
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    target = folder / f"cpu-{level}-{digest.hexdigest()}.so"
    if target.is_file():
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as work:
            made = Path(work) / target.name
            units = [str(source) for source in sources if source.suffix == ".c"]
            done = subprocess.run(  # noqa: S603 - the compiler that the operator's environment names
                [*command, *units, "-o", str(made), "-lm"],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            if done.returncode:
                words = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
                raise BuildError(f"{compiler[0]} failed: {words}")
            made.replace(target)
    except FileNotFoundError as error:
        raise BuildError(f"there is no C compiler ({compiler[0]})") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler[0]} took more than {SECONDS} s") from error
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror or error}") from error
    return target
