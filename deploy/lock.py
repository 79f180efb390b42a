"""Writes constraints/ anew: exact versions with the hashes of all of their files, for every Python and system that we
support, and the digests of the images that ours are made from. `make lock` runs it; what still fits stays as it is.

python deploy/lock.py UV             after a change of pyproject.toml, or of an image's tag (written without a digest)
python deploy/lock.py UV --upgrade   the newest of everything, and what the images' tags name today
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = "3.11"
LAYERS = {"gateway": ("gateway", "otel"), "engine": ("engine",), "dev": ("dev",)}
"""What each file adds to those before it, by the extras of pyproject.toml."""
ABOUT = {
    "gateway": "a gateway, traces included, and what builds our own package.",
    "engine": "what the engine adds to gateway.txt, but for torch.",
    "torch": "torch, with the hashes of PyPI's files and of the CPU builds for Linux on PyTorch's own index.",
    "cuda": "what PyPI's torch for Linux needs beside engine.txt; its CPU build does without.",
    "dev": "what tests and checks add to gateway.txt and engine.txt.",
    "tools": "what `make lock` and `make audit` run, in an environment of their own.",
}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
IMAGES = ("Dockerfile", "docker-compose.yml")
_FIRST = re.compile(r"([a-z0-9-]+)==([^\s;]+)")
_OF_CUDA = re.compile(r"(cuda|nvidia|triton)(-|$)")
IMAGE = re.compile(r"^( *(?:image:|FROM) )([a-z][\w./-]*:[\w.-]+)(?:@(sha256:[0-9a-f]{64}))?(?=\s|$)", re.MULTILINE)


def blocks(lock: str) -> dict[str, str]:
    """The lines of each package, its hashes included, by its first one."""
    found: dict[str, str] = {}
    first = ""
    for line in lock.splitlines():
        if _FIRST.match(line):
            first = line
            found[first] = line + "\n"
        elif line.startswith("    --hash="):
            found[first] += line + "\n"
    return found


def hashes(lock: str) -> set[str]:
    """Every hash that it names."""
    return set(re.findall(r"--hash=(sha256:[0-9a-f]{64})", lock))


def uv_compile(uv: str, *arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run it: exact versions with their hashes, without a word of where they come from."""
    options = ("--quiet", "--no-config", "--generate-hashes", "--no-annotate", "--no-header")
    command = [uv, "pip", "compile", *options, *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - uv of ours


def compiled(uv: str, *arguments: str, root: Path) -> str:
    """What uv makes of it, for any system and each Python from the oldest on; ends us where it can't."""
    done = uv_compile(uv, "--universal", f"--python-version={OLDEST}", *arguments, root=root)
    return sys.exit(done.stderr) if done.returncode else done.stdout


def cpu_hashes(uv: str, version: str, index: str, before: str) -> set[str]:
    """The hashes of torch's CPU builds, or those of `before` where their index can't be asked for the same version."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "torch.in"
        wanted.write_text(f"torch=={version}+cpu\n")
        done = uv_compile(
            uv, "--no-deps", f"--default-index={index}", "--python-platform=linux", wanted.name, root=wanted.parent
        )
    if done.returncode == 0:
        return hashes(done.stdout)
    if f"torch=={version} " not in before:
        sys.exit(f"torch {version} is new, and {index} doesn't tell of its CPU build:\n{done.stderr}")
    print(f"{index} doesn't tell of torch {version}: the hashes of its CPU build stay as they are")
    return hashes(before)


def lock_packages(uv: str, *, upgrade: bool, cpu_index: str, root: Path) -> None:
    """Write the files that ABOUT names."""
    place = root / "constraints"
    files = {name: place / f"{name}.txt" for name in ABOUT}
    old = {name: path.read_text() if path.exists() else "" for name, path in files.items()}
    new = dict.fromkeys(ABOUT, "")
    newest = ("--upgrade",) if upgrade else ()
    with tempfile.TemporaryDirectory() as folder:
        tools, everything, backend = (Path(folder) / name for name in ("tools.txt", "everything.txt", "backend.in"))
        tools.write_text(old["tools"])
        compiled(uv, "--group=tools", f"--output-file={tools}", *newest, root=root)
        new["tools"] = "".join(blocks(tools.read_text()).values())
        project = tomllib.loads((root / "pyproject.toml").read_text())
        backend.write_text("\n".join(project["build-system"]["requires"]))
        everything.write_text("".join(lock for name, lock in old.items() if name != "tools"))
        sources = ("pyproject.toml", str(backend))
        extras = [f"--extra={each}" for layer in LAYERS.values() for each in layer]
        compiled(uv, *sources, *extras, f"--output-file={everything}", *newest, root=root)
        locked: set[str] = set()
        taken: list[str] = []
        for layer, names in LAYERS.items():
            taken += [f"--extra={each}" for each in names]
            found = blocks(compiled(uv, *sources, *taken, f"--constraint={everything}", root=root))
            for first, block in found.items():
                name = _FIRST.match(first)[1]  # type: ignore[index]
                if name == "triton" and layer == "dev":  # the tests interpret its kernels, whichever torch there is
                    new["dev"] += block
                elif first not in locked:
                    new["torch" if name == "torch" else "cuda" if _OF_CUDA.match(name) else layer] += block
            locked |= set(found)
    version = _FIRST.match(new["torch"])[2]  # type: ignore[index]
    allowed = sorted(hashes(new["torch"]) | cpu_hashes(uv, version, cpu_index, old["torch"]))
    new["torch"] = " \\\n    ".join([f"torch=={version}", *(f"--hash={each}" for each in allowed)]) + "\n"
    for name, path in files.items():
        path.write_text(f"# Written by `make lock`: {ABOUT[name]}\n{new[name]}")


def digest(image: str) -> str | None:
    """Ask Docker which digest a tag names today, for all platforms; None, and a word why, where it can't tell."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - a tag of ours
        [found] = re.findall(r"^sha256:[0-9a-f]{64}$", json.loads(answer)["digest"])
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError) as error:
        [why, *_] = (getattr(error, "stderr", "") or str(error)).splitlines() or [""]
        print(f"{image}: Docker doesn't tell its digest: {why}")
        return None
    return found


def lock_images(*, upgrade: bool, root: Path) -> bool:
    """Write a digest to each image that has none, or to all; False where Docker didn't tell one."""
    asked: dict[str, str | None] = {}

    def locked(match: re.Match[str]) -> str:
        start, image, old = match.groups()
        if upgrade or old is None:
            asked[image] = asked[image] if image in asked else digest(image)
            old = asked[image] or old
        return f"{start}{image}@{old}" if old else match[0]

    texts = {path: IMAGE.sub(locked, path.read_text()) for path in (root / name for name in IMAGES)}
    for path, text in texts.items():
        path.write_text(text)
    return all(match[3] for text in texts.values() for match in IMAGE.finditer(text)) and None not in asked.values()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("uv", help="the program uv")
    parser.add_argument("--upgrade", action="store_true", help="take the newest that pyproject.toml allows")
    parser.add_argument("--cpu-index", default=CPU_INDEX, help="where torch's CPU builds are")
    given = parser.parse_args()
    uv = shutil.which(given.uv) or parser.error(f"{given.uv}: no such program")
    lock_packages(str(Path(uv).absolute()), upgrade=given.upgrade, cpu_index=given.cpu_index, root=ROOT)
    return 0 if lock_images(upgrade=given.upgrade, root=ROOT) else 1


if __name__ == "__main__":
    sys.exit(main())
