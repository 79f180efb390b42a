"""Worker processes for tests: their spec in a short folder, started, reached and always ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference.config import EngineConfig, WorkerConfig
from inference.engine import Engine, EngineSpec
from inference.open import open_engine
from tests.inference.engine_contract import until

# A step takes a millisecond: without that a busy machine generates a whole context before a cancel is even sent.
ECHO_OPTIONS = {"bad": "FAIL", "poison": "POISON", "step_seconds": 0.001}
ECHO = EngineConfig("echo", "fake", architecture="fake", options=ECHO_OPTIONS)
SLOW = EngineConfig("slow", "fake", architecture="fake", options={"step_seconds": 0.01})
SESSION_SECONDS = 120.0  # a busy machine renews late: a session ends by silence only where a test asks for it
EMBEDDER = EngineConfig("embedder", "fake", architecture="fake", options={"kinds": ["embedding"], "bad": "FAIL"})


class WorkerProcess:
    """One worker's spec and, while it runs, its process. Its folder is short enough for a socket's path."""

    def __init__(self, *engines: EngineConfig, endpoint: str = "", **config: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
        self.config = WorkerConfig(
            endpoint=endpoint or f"ipc://{self.folder}/s",
            record=str(self.folder / "record"),
            secret="secret",
            engines=engines or (ECHO, SLOW, EMBEDDER),
            **{"session_seconds": SESSION_SECONDS, **config},
        )
        self.config.save(self.folder / "spec.json")
        self.process: subprocess.Popen[str] | None = None
        self.output = ""

    def start(self) -> WorkerProcess:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inference.worker", "--spec", str(self.folder / "spec.json")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def follow(self, *engines: EngineConfig) -> None:
        """Have the worker serve these deployments and no others."""
        self.config = replace(self.config, engines=engines)
        self.config.save(self.folder / "spec.json")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process and return its status; `output` has all it printed."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        self.output += self.process.communicate(timeout=120)[0]
        status = self.process.returncode
        self.process = None
        return status

    def lines(self) -> list[dict[str, Any]]:
        """What the worker logged."""
        return [json.loads(line) for line in self.output.splitlines()]

    def close(self) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder)

    def spec(self, deployment: str, **options: Any) -> EngineSpec:
        return EngineSpec(deployment, "worker", self.config.endpoint, options)

    async def open(self, deployment: str, **options: Any) -> Engine:
        """The engine of a deployment, when its worker serves it."""
        engine = open_engine(self.spec(deployment, **options))
        await ready(engine)
        return engine


async def ready(engine: Engine) -> None:
    """Return when the worker takes requests for `engine`."""

    async def is_ready() -> bool:
        return (await engine.health()).ready

    await until(is_ready)
