"""Loading and withdrawing of deployments, as the worker's spec file changes, without a new process.

One action at a time, in a thread of its own. A deployment that the file names no more takes no new requests, and is
freed when those that run have ended. A new one is loaded and checked by `load_model`, and announced only then. One
whose settings changed goes on with the old ones until the new ones are loaded. For one that is refused, `Health` has
the reason.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from inference.config import EngineConfig, WorkerConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.tokenizer import FolderTokenizer, Tokenizer
from inference.types import LOADING, Health
from inference.worker.apart import apart
from inference.worker.deployment import Deployment
from inference.worker.requests import AddCommand, Command, DrainCommand, RepriceCommand
from inference.worker.serving import Serving

POLL_SECONDS = 1.0
REFUSED = "model refused"
FAILED = "loading failed"

log = logging.getLogger(__name__)


class Loader:
    """Follows the spec file. `run` is the thread's function; tests call `step` instead."""

    def __init__(
        self,
        config: WorkerConfig,
        spec: Path | None,
        *,
        serving: Serving,
        inbox: SimpleQueue[Command],
        announce: Callable[[], None],
        ending: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._spec = spec
        self._spec_state = _state_of(spec)
        self._serving = serving
        self._inbox = inbox
        self._announce = announce
        self._ending = ending
        self._clock = clock
        self._tried: dict[str, str] = {}  # by deployment, the revision that was loaded or refused
        self._retired = threading.Event()
        self._mark_loading()

    def run(self) -> None:
        """Follow the spec file until the worker ends."""
        while not self._ending.is_set():
            if not self.step():
                self._ending.wait(POLL_SECONDS)

    def step(self) -> bool:
        """Withdraw what the spec names no more, load one deployment or read one adapter; False when none was left."""
        self._read()
        for name in [name for name in self._tried if name not in self._wanted]:
            self._withdraw(name)
        if self._retired.is_set():
            self._retired.clear()
            gc.unfreeze()  # reference cycles within the model would otherwise keep its memory for ever
            _freeze()
        engine = next(
            (each for each in self._config.engines if self._tried.get(each.deployment) != each.revision), None
        )
        if engine is None:
            return self._check_adapter()
        self._tried[engine.deployment] = engine.revision
        self._load(engine)
        return True

    def _check_adapter(self) -> bool:
        """Read one adapter that nobody has used yet, so that its faults are known; False where none is left."""
        for deployment in list(self._serving.deployments.values()):
            if deployment.check_adapter():
                self._announce()
                return True
        return False

    @property
    def _wanted(self) -> set[str]:
        return {engine.deployment for engine in self._config.engines}

    def _read(self) -> None:
        """Take over the file's engines if it has changed; other settings take effect when the process starts."""
        state = _state_of(self._spec)
        if self._spec is None or state is None or state == self._spec_state:
            return
        self._spec_state = state
        try:
            config = WorkerConfig.load(self._spec)
        except (OSError, ValueError) as error:
            log.error("the spec has changed and can't be used, so nothing changes here: %s", error)  # noqa: TRY400
            return
        self._config = replace(self._config, engines=config.engines, refused=config.refused)
        if replace(config, engines=()) != replace(self._config, engines=()):
            log.warning("the spec changes more than its models: that takes effect at the next start")
        for engine in config.engines:
            if (deployment := self._serving.deployments.get(engine.deployment)) is not None:
                self._inbox.put(RepriceCommand(deployment, engine.rates))
                deployment.offer(engine)
        self._mark_loading()

    def _mark_loading(self) -> None:
        for name in self._serving.unready.keys() - self._wanted:
            del self._serving.unready[name]
        for engine in self._config.engines:
            name = engine.deployment
            if name not in self._serving.deployments and self._tried.get(name) != engine.revision:
                self._serving.unready[name] = Health(ready=False, reason=LOADING, revision=engine.revision)
        for name, reason in self._config.refused.items():
            log.warning("model refused: %s", reason, extra={"deployment": name})
            self._serving.unready[name] = Health(ready=False, reason=REFUSED, detail=reason, revision=REFUSED)
        self._announce()

    def _load(self, config: EngineConfig) -> None:
        name, began = config.deployment, self._clock()
        self._note_loading(config, "loading")
        try:
            deployment = apart(partial(self._loaded, config))
        except ModelRefusedError as error:
            log.warning("model refused: %s", error, extra={"deployment": name})
            self._refuse(config, REFUSED, str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a library in Rust that panics raises no Exception
            log.exception("loading failed", extra={"deployment": name})
            self._refuse(config, FAILED, f"{type(error).__name__}: {error}")
        else:
            if self._ending.is_set():
                return
            earlier = self._serving.deployments.get(name)
            self._inbox.put(AddCommand(deployment))
            self._serving.deployments[name] = deployment
            self._serving.unready.pop(name, None)
            if earlier is not None:
                self._retire(earlier)
            details = {f"model_{key}": value for key, value in deployment.info.details.items()}
            seconds = round(self._clock() - began, 3)
            log.info("model ready", extra={"deployment": name, "seconds": seconds, **details})
        self._announce()
        _freeze()

    def _note_loading(self, config: EngineConfig, doing: str) -> None:
        """Tell operators what a deployment that isn't served yet waits for."""
        if config.deployment in self._serving.unready:
            self._serving.unready[config.deployment] = Health(
                ready=False, reason=LOADING, detail=doing, revision=config.revision
            )
            self._announce()

    def _loaded(self, config: EngineConfig) -> Deployment:
        model: LoadedModel
        tokenizer: Tokenizer
        if config.architecture == "fake":
            from inference.architectures.fake import load_fake_model

            model, tokenizer = load_fake_model(config), ByteTokenizer()
        else:
            # Here and not above: it imports torch.
            from inference.architectures.load import load_model

            model = load_model(
                config,
                threads=self._config.threads,
                kv_share=self._config.kv_share,
                tell=partial(self._note_loading, config),
            )
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
        """Keep the reason why it isn't served, and retire the deployment with its earlier settings."""
        name = config.deployment
        self._serving.unready[name] = Health(ready=False, reason=reason, detail=detail, revision=config.revision)
        if (earlier := self._serving.deployments.pop(name, None)) is not None:
            self._retire(earlier)

    def _withdraw(self, name: str) -> None:
        del self._tried[name]
        if name not in self._config.refused:
            self._serving.unready.pop(name, None)
        if (deployment := self._serving.deployments.pop(name, None)) is not None:
            log.info("model withdrawn", extra={"deployment": name})
            self._retire(deployment)
        self._announce()

    def _retire(self, deployment: Deployment) -> None:
        deadline = self._clock() + self._config.withdraw_seconds
        self._inbox.put(DrainCommand((deployment,), deadline, self._retired.set, remove=True))


def _state_of(path: Path | None) -> tuple[int, int, int] | None:
    """The file's modification time, inode and size; None when there is no file."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _freeze() -> None:
    """Exclude what is loaded from later garbage collections, which would delay steps, and let those be few.

    A step of many rows makes thousands of objects, and hardly a cycle: with the interpreter's own threshold the young
    ones would be searched for cycles several times in each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
