"""Has a worker serve what its spec file names, while it serves: models come and go without a new process.

One action at a time, in a thread of its own: a deployment that the file names no more takes no new requests, and is let
go when those that run have ended; a new one is loaded, proved by `load_model`, and announced only then. A deployment
whose settings changed serves on with the old ones until the new ones are loaded. One that is refused says so.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from inference.config import EngineConfig, WorkerConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.tokenizer import FolderTokenizer, Tokenizer
from inference.types import LOADING, EngineInfo, Health
from inference.worker.deployment import Deployment
from inference.worker.requests import AddCommand, Command, DrainCommand, RepriceCommand

LOOK_SECONDS = 0.25
REFUSED = "model refused"
FAILED = "loading failed"

log = logging.getLogger(__name__)


class Served(Protocol):
    """What the reader thread answers from: deployments that serve, and the state of those that don't."""

    deployments: dict[str, Deployment]
    unready: dict[str, Health]


class Loader:
    """See the module. `run` is the thread; `step` does one thing and may be called by hand instead."""

    def __init__(
        self,
        config: WorkerConfig,
        spec: Path | None,
        *,
        served: Served,
        inbox: SimpleQueue[Command],
        announce: Callable[[], None],
        ending: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._spec = spec
        self._spec_state = _state_of(spec)
        self._served = served
        self._inbox = inbox
        self._announce = announce
        self._ending = ending
        self._clock = clock
        self._tried: dict[str, str] = {}  # the revision that was loaded or refused, by deployment
        self._released = threading.Event()
        self._say_loading()

    def run(self) -> None:
        """Follow the spec file until the worker ends."""
        while not self._ending.is_set():
            if not self.step():
                self._ending.wait(LOOK_SECONDS)

    def step(self) -> bool:
        """Do the next thing that the spec asks for; False when nothing is left to do."""
        self._read()
        for name in [name for name in self._tried if name not in self._wanted]:
            self._withdraw(name)
        if self._released.is_set():
            self._released.clear()
            gc.unfreeze()  # the model's own cycles would otherwise hold its memory for ever
            _freeze()
        engine = next(
            (each for each in self._config.engines if self._tried.get(each.deployment) != each.revision), None
        )
        if engine is None:
            return False
        self._tried[engine.deployment] = engine.revision
        self._load(engine)
        return True

    @property
    def _wanted(self) -> set[str]:
        return {engine.deployment for engine in self._config.engines}

    def _read(self) -> None:
        """Take the file's engines if it has changed; the rest of a spec counts from the process's start."""
        state = _state_of(self._spec)
        if self._spec is None or state is None or state == self._spec_state:
            return
        self._spec_state = state
        try:
            config = WorkerConfig.load(self._spec)
        except (OSError, ValueError) as error:
            log.error("the spec has changed and can't be used, so nothing changes here: %s", error)  # noqa: TRY400
            return
        self._config = replace(self._config, engines=config.engines)
        if replace(config, engines=()) != replace(self._config, engines=()):
            log.warning("the spec asks for more than other models: that counts from the next start")
        for engine in config.engines:
            if (deployment := self._served.deployments.get(engine.deployment)) is not None:
                self._inbox.put(RepriceCommand(deployment, engine.rates))
        self._say_loading()

    def _say_loading(self) -> None:
        for name in self._served.unready.keys() - self._wanted:
            del self._served.unready[name]
        for engine in self._config.engines:
            name = engine.deployment
            if name not in self._served.deployments and self._tried.get(name) != engine.revision:
                self._served.unready[name] = Health(ready=False, reason=LOADING, revision=engine.revision)
        self._announce()

    def _load(self, config: EngineConfig) -> None:
        name, began = config.deployment, self._clock()
        try:
            deployment = self._loaded(config)
        except ModelRefusedError as error:
            log.warning("model refused: %s", error, extra={"deployment": name})
            self._refuse(config, REFUSED, str(error))
        except Exception as error:
            log.exception("loading failed", extra={"deployment": name})
            self._refuse(config, FAILED, f"{type(error).__name__}: {error}")
        else:
            if self._ending.is_set():
                return
            earlier = self._served.deployments.get(name)
            self._inbox.put(AddCommand(deployment))
            self._served.deployments[name] = deployment
            self._served.unready.pop(name, None)
            if earlier is not None:
                self._let_go(earlier)
            details = {f"model_{key}": value for key, value in deployment.info.details.items()}
            seconds = round(self._clock() - began, 3)
            log.info("model ready", extra={"deployment": name, "seconds": seconds, **details})
            log.info("served here:\n%s", table([each.info for each in self._served.deployments.values()]))
        self._announce()
        _freeze()

    def _loaded(self, config: EngineConfig) -> Deployment:
        model: LoadedModel
        tokenizer: Tokenizer
        if config.architecture == "fake":
            from inference.architectures.fake import load_fake_model

            model, tokenizer = load_fake_model(config), ByteTokenizer()
        else:
            # Here and not above: it imports torch.
            from inference.architectures.load import load_model

            model = load_model(config, threads=self._config.threads, kv_share=self._config.kv_share)
            tokenizer = FolderTokenizer(model.tokenizer_folder)
        return Deployment(
            config,
            model,
            tokenizer,
            secret=self._config.secret.encode(),
            pause_seconds=self._config.pause_seconds,
            clock=self._clock,
        )

    def _refuse(self, config: EngineConfig, reason: str, detail: str) -> None:
        """Say why it isn't served; what served under its earlier settings is let go, as the catalogue says."""
        name = config.deployment
        self._served.unready[name] = Health(ready=False, reason=reason, detail=detail, revision=config.revision)
        if (earlier := self._served.deployments.pop(name, None)) is not None:
            self._let_go(earlier)

    def _withdraw(self, name: str) -> None:
        del self._tried[name]
        self._served.unready.pop(name, None)
        if (deployment := self._served.deployments.pop(name, None)) is not None:
            log.info("model withdrawn", extra={"deployment": name})
            self._let_go(deployment)
        self._announce()

    def _let_go(self, deployment: Deployment) -> None:
        deadline = self._clock() + self._config.withdraw_seconds
        self._inbox.put(DrainCommand((deployment,), deadline, self._released.set, leaves=True))


def table(infos: Iterable[EngineInfo]) -> str:
    """Return what is served as lines of text: model, context, room for K/V, dtype."""
    rows = [("model", "context", "K/V", "computes in")]
    for info in infos:
        details = info.details
        rows.append((info.model, str(info.max_context), details.get("kv", "none"), details.get("dtype", "-")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _state_of(path: Path | None) -> tuple[int, int, int] | None:
    """What differs between two contents of a file; None when there is no file."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _freeze() -> None:
    """Keep what is loaded out of the collector's later walks, which would hold up every step."""
    gc.collect()
    gc.freeze()
