"""The Dockerfile's steps, run as a script in a folder: what is copied is there, is enough, and nothing more."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from control.docs.site import FILES, all_pages
from tests.services.ports import lease_port

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("/opt/venv", "/var/lib/sluice", "/run/sluice", "/src", "/app")
SKIPPED = ("apt-get", "useradd", "install", "rm")
HASHED = "--only-binary=:all: --require-hashes"


def instructions():
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, " ".join(rest.split())


def stages():
    """(name, base, instructions) of each stage."""
    found = []
    for name, rest in instructions():
        if name == "FROM":
            base, _, own = rest.partition(" AS ")
            found.append((own, base, []))
        elif found:
            found[-1][2].append((name, rest))
    return found


def sent(path):
    """Whether .dockerignore lets a file of the repository into the build."""
    verdict = True
    for rule in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = rule.removeprefix("!")
        if not rule or rule.startswith("#"):
            continue
        parts = path.split("/")
        prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        if any(fnmatch.fnmatchcase(f"/{prefix}", pattern.replace("**/", "*/")) for prefix in prefixes) or any(
            fnmatch.fnmatchcase(prefix, pattern) for prefix in prefixes
        ):
            verdict = rule.startswith("!")
    return verdict


class Build:
    """Builds stages in folders: real copies and commands, with programs that would change this machine taken away."""

    def __init__(self, folder):
        self.folder = folder
        self.said = folder / "said"
        self.context = folder / "context"
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(sent, files.splitlines()):
            target = self.context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in SKIPPED:
            self._program(name, f'echo "{name} $*" >> {self.said}')
        venv = f'mkdir -p "$3/bin" && ln -s {sys.executable} "$3/bin/python" && cp {self.programs}/pip "$3/bin/pip"'
        self._program("pip", f'echo "pip $*" >> {self.said}')
        self._program("python", f'if [ "$1 $2" = "-m venv" ]; then {venv}; else exec {sys.executable} "$@"; fi')

    def _program(self, name, script):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\nset -e\n{script}\n")
        path.chmod(0o755)

    def stage(self, name):
        """Return the folder of a built stage."""
        root = self.folder / "stages" / name
        if root.exists():
            return root
        [(_, base, steps)] = [stage for stage in stages() if stage[0] == name]
        if base.startswith("python:"):
            root.mkdir(parents=True)
        else:
            shutil.copytree(self.stage(base), root, symlinks=True)
        variables = {"ENV": {}, "ARG": {}, "WORKDIR": "/"}
        self._inherit(name, variables)
        for step, rest in steps:
            self._do(root, step, rest, variables)
        return root

    def _inherit(self, name, variables):
        [(_, base, _)] = [stage for stage in stages() if stage[0] == name]
        for own, _, steps in stages():
            if own == base:
                self._inherit(base, variables)
                for step, rest in steps:
                    if step == "WORKDIR":
                        variables["WORKDIR"] = rest

    def _do(self, root, step, rest, variables):
        if step == "WORKDIR":
            variables["WORKDIR"] = rest
            (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step == "ARG":
            name, _, value = rest.partition("=")
            variables["ARG"][name] = value
        elif step == "COPY":
            self._copy(root, rest.split(), variables["WORKDIR"])
        elif step == "RUN":
            for place in PLACES:
                rest = re.sub(rf"(?<![\w/]){place}(?=[/\s'\"]|$)", f"{root}{place}", rest)
            environment = {
                "PATH": f"{self.programs}:{os.environ['PATH']}",
                **variables["ARG"],
                "HOME": str(self.folder),
            }
            place = root / variables["WORKDIR"].lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                ["sh", "-ec", rest], cwd=place, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (rest, done.stdout, done.stderr)
        else:
            assert step in {"ENV", "USER", "ENTRYPOINT", "CMD", "EXPOSE", "HEALTHCHECK"}, step

    def _copy(self, root, words, place):
        origin = self.context
        if words[0].startswith("--from="):
            origin = self.stage(words.pop(0).removeprefix("--from="))
        *sources, target = words
        into = root / target.lstrip("/") if target.startswith("/") else root / place.lstrip("/") / target
        for source in sources:
            path = origin / source.lstrip("/")
            assert path.exists(), f"COPY {source}: not in the build's context"
            if path.is_dir():
                shutil.copytree(path, into, symlinks=True, dirs_exist_ok=True)
            else:
                (into if target.endswith("/") else into.parent).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, into / path.name if target.endswith("/") else into)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return Build(tmp_path_factory.mktemp("image"))


def of(name, step):
    """The values of a step in a stage and those that it is made from, the last one last."""
    [(_, base, steps)] = [stage for stage in stages() if stage[0] == name]
    inherited = [] if base.startswith("python:") else of(base, step)
    return inherited + [rest for each, rest in steps if each == step]


@pytest.mark.slow
def test_the_gateway_is_built_whole_and_without_torch(build):
    app = build.stage("gateway") / "app"
    said = build.said.read_text()
    assert "torch" not in said
    assert [line for line in said.splitlines() if line.startswith("pip ")] == [
        f"pip install --no-cache-dir {HASHED} -r constraints/gateway.txt",
        "pip install --no-cache-dir --no-deps --no-build-isolation .",
    ]
    there = {path.name for path in app.iterdir()}
    assert there == {
        *("manage.py", "LICENSE", "base", "tenancy", "fleet", "gateway", "control", "operation", "billing", "routing"),
        *("inference", "desk", "templates", "static", "deploy", "docs", "examples"),
        *("SECURITY.md", "UPGRADING.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    }
    assert not [page.source for page in all_pages() if not (app / page.source).is_file()]
    assert not [name for name in FILES if not (app / name).is_file()]
    assert {path.name for path in (app / "deploy").iterdir()} == {"docker"}
    assert list(app.rglob("__pycache__")), "compiled, since its user can't"
    assert not [path for path in app.rglob("*") if path.name in {"tests", ".git", "var", ".env", "node_modules"}]


@pytest.mark.slow
def test_what_was_built_sets_itself_up(build, tmp_path):
    app = build.stage("gateway") / "app"
    environment = {
        "PATH": os.environ["PATH"],
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_RUNTIME_DIR": str(tmp_path / "run"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SLUICE_ENV": "test",
    }
    before = {path: path.stat().st_mtime_ns for path in app.rglob("*")}
    for command in (["setup"], ["check"], ["reconcile"], ["backup", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=app,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert before == {path: path.stat().st_mtime_ns for path in app.rglob("*")}, "its folder may be read-only"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "torch"),
    [
        ("worker", f"{HASHED} --no-deps --index-url https://download.pytorch.org/whl/cpu -r constraints/torch.txt"),
        ("worker-cuda", "--index-url https://download.pytorch.org/whl/cu128 torch>=2.11,<2.14"),
    ],
)
def test_workers_take_torch_from_the_index_that_was_asked_for(build, stage, torch):
    assert (build.stage(stage) / "app" / "manage.py").exists()
    said = [line for line in build.said.read_text().splitlines() if line.startswith("pip ")]
    assert f"pip install --no-cache-dir {HASHED} -r constraints/gateway.txt -r constraints/engine.txt" in said[:-1]
    assert said[-1] == f"pip install --no-cache-dir {torch}"


@pytest.mark.parametrize("target", ["gateway", "worker", "worker-cuda"])
def test_images_run_as_nobody_special_and_say_how_they_are(target):
    assert of(target, "USER")[-1] == "10001:10001"
    [health] = of(target, "HEALTHCHECK")
    [which] = json.loads(health.partition("CMD ")[2])[2:]
    assert which == target.removesuffix("-cuda")
    assert json.loads(of(target, "ENTRYPOINT")[-1]) == ["python", "manage.py"]
    assert (ROOT / "deploy/docker/healthy.py").exists()
    settings = dict(each.split("=", 1) for line in of(target, "ENV") for each in shlex.split(line))
    assert settings["SLUICE_HOME"] == "/var/lib/sluice"


@pytest.mark.parametrize("target", ["worker", "worker-cuda"])
def test_workers_have_the_compiler_that_their_kernels_need(target):
    [installed] = [rest for rest in of(target, "RUN") if " gcc " in f" {rest} "]
    assert re.search(r"apt-get install .*\blibc6-dev\b", installed)


def test_health_is_what_the_process_shows(tmp_path):
    def ask(which, **variables):
        command = [sys.executable, str(ROOT / "deploy/docker/healthy.py"), which]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=False).returncode

    beat = tmp_path / "worker-cpu.heartbeat"
    assert ask("worker", SLUICE_RUNTIME_DIR=str(tmp_path)) == 0
    beat.touch()
    assert ask("worker", SLUICE_RUNTIME_DIR=str(tmp_path)) == 0
    os.utime(beat, (1, 1))
    assert ask("worker", SLUICE_RUNTIME_DIR=str(tmp_path)) == 1
    assert ask("celery", SLUICE_HEARTBEAT=str(beat)) == 1
    beat.touch()
    assert ask("celery", SLUICE_HEARTBEAT=str(beat)) == 0
    beat.unlink()
    assert ask("celery", SLUICE_HEARTBEAT=str(beat)) == 1, "it hangs since before its first task"
    assert ask("gateway", SLUICE_METRICS_PORT=str(lease_port())) == 1


def test_gateways_image_can_send_the_traces_that_the_compose_file_may_ask_for():
    assert "opentelemetry-exporter-otlp-proto-http==" in (ROOT / "constraints/gateway.txt").read_text()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT: ${" in (ROOT / "docker-compose.yml").read_text()
