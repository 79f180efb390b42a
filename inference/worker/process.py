"""The worker process: locks its record, binds its socket, loads its models, serves, drains and ends.

The main thread waits for signals, the reader (`sessions.py`) owns the socket, the step thread (`step_loop.py`) owns
models and schedulers. The loading thread (`loading.py`) follows the spec file and loads models, so that signals are
handled meanwhile; another thread (`prompts.py`) tokenises long prompts, and one (`heartbeat.py`) touches the heartbeat.
"""

from __future__ import annotations

import logging
import resource
import secrets
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from inference.config import WorkerConfig
from inference.curve import WorkerKeys, secure_server
from inference.protocol import MAX_FRAME_BYTES, FromWorker
from inference.worker.budget import PreparationBudget
from inference.worker.heartbeat import Heartbeat
from inference.worker.loading import Loader
from inference.worker.prompts import PromptResult, Queues
from inference.worker.record import Record
from inference.worker.requests import Command, DrainCommand, Request, StopCommand
from inference.worker.serving import Serving
from inference.worker.sessions import Outgoing, Reader
from inference.worker.step_loop import StepLoop

# How long a connection may take to prove its key, and how many can try: each costs a descriptor.
_HANDSHAKE_MS = 3_000
_DESCRIPTORS = 65_536

log = logging.getLogger(__name__)


class Outbox:
    """The reader's queue of messages to send. Any thread may add an entry; the reader is woken for each."""

    def __init__(self, wake: Any) -> None:
        self.queue: SimpleQueue[Outgoing] = SimpleQueue()
        self._wake = wake
        self._mutex = threading.Lock()

    def send(self, session: bytes, message: FromWorker) -> None:
        """Send `message` to `session`, if it is still there by then."""
        self._put((session, message))

    def prepared(self, result: PromptResult) -> None:
        """Hand the reader the result of a long prompt."""
        self._put(result)

    def announce(self) -> None:
        """Send every session the deployments and their health."""
        self._put((b"", None))

    def finish(self) -> None:
        """End the reader when every earlier entry has been sent."""
        self._put(None)

    def _put(self, entry: Outgoing) -> None:
        with self._mutex:
            self.queue.put(entry)
            self._wake.send(b"")


class Worker:
    """The parts of one worker process. `run` serves until the process has to end and returns its exit status."""

    def __init__(self, config: WorkerConfig, *, spec: Path | None = None) -> None:
        """Lock the record and bind the endpoint; raise `RecordLockedError`, `zmq.ZMQError`, or OSError or ValueError
        for a key file that can't be used.

        `spec` is the file of `config`; while the worker runs, its deployments follow that file's `engines`.
        """
        self.config = config
        self.incarnation = secrets.token_hex(8)
        self._ending = threading.Event()
        self._broken = threading.Event()
        keys = WorkerKeys.load(Path(config.keys)) if config.keys else None
        self._record = Record(Path(config.record))
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._router = self._bind(keys)
        wake_in, wake_out = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        for socket in (wake_in, wake_out):
            socket.set_hwm(0)
        wake_out.bind("inproc://wake")
        wake_in.connect("inproc://wake")
        self._sockets = (wake_in, wake_out)
        self._outbox = Outbox(wake_in)
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        registry: dict[str, Request] = {}
        self._loop = StepLoop(record=self._record, registry=registry, inbox=self._inbox, outbox=self._outbox)
        budget = PreparationBudget()
        self._queues = Queues.opened(self._outbox.prepared, budget)
        self._serving = Serving(self._loop, step_seconds=config.step_seconds)
        self._reader = Reader(
            router=self._router,
            wake=wake_out,
            incarnation=self.incarnation,
            record=self._record,
            registry=registry,
            inbox=self._inbox,
            serving=self._serving,
            enqueue=self._outbox.send,
            queues=self._queues,
            budget=budget,
            session_seconds=config.session_seconds,
            session_bytes=config.session_bytes,
            prepared_seconds=config.prepared_seconds,
        )
        self._loader = Loader(
            config,
            spec,
            serving=self._serving,
            inbox=self._inbox,
            announce=self._outbox.announce,
            ending=self._ending,
        )
        self._loading = threading.Thread(target=self._guard, args=(self._loader.run,), name="loading", daemon=True)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT (then 0, after a drain) or until a thread breaks (then 1)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        steps = threading.Thread(target=self._guard, args=(self._loop.run,), name="steps", daemon=True)
        reader = threading.Thread(
            target=self._guard, args=(self._reader.run, self._outbox.queue), name="reader", daemon=True
        )
        reader.start()
        log.info("listening", extra={"endpoint": self.config.endpoint, "incarnation": self.incarnation})
        steps.start()
        heartbeat = Heartbeat(reader=self._reader, steps=self._loop, step_seconds=self.config.step_seconds)
        threading.Thread(target=heartbeat.run, args=(self._ending,), name="heartbeat", daemon=True).start()
        self._loading.start()
        self._ending.wait()
        if not self._broken.is_set():
            self._drain()
        self._inbox.put(StopCommand())
        self._outbox.finish()
        reader.join(timeout=2)
        self._queues.close()
        self._loading.join(timeout=0.2)
        broken = self._broken.is_set()
        if not broken:
            steps.join(timeout=2)
            self._close()
        log.info("stopped", extra={"broken": broken})
        return int(broken)

    @property
    def is_loading(self) -> bool:
        """True while a model is being loaded, even after `run`: only the end of the process can stop that."""
        return self._loading.is_alive()

    # -- start --------------------------------------------------------------------------------------------------

    def _bind(self, keys: WorkerKeys | None) -> Any:
        config = self.config
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.LINGER, 500)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        router.set_hwm(0)
        if (path := _socket_file(config.endpoint)) is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if keys is not None:
            router.setsockopt(zmq.IPV6, 1)
            router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
            _raise_file_limit()
            self._authenticator = secure_server(self._context, router, keys)
        router.bind(config.endpoint)
        return router

    # -- end ----------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        self._ending.set()

    def _guard(self, target: Any, *args: Any) -> None:
        """Run a thread's function; end the process when it raises."""
        try:
            target(*args)
        except BaseException:
            log.critical("a thread of the worker broke; the process ends", exc_info=True)
            self._broken.set()
            self._ending.set()

    def _drain(self) -> None:
        """Refuse new work, let what runs end within `drain_seconds`, and cancel the rest; return when nothing runs."""
        self._serving.draining = True
        self._outbox.announce()
        drained = threading.Event()
        deadline = time.monotonic() + self.config.drain_seconds
        self._inbox.put(DrainCommand(None, deadline, drained.set))
        while not drained.wait(0.1) and not self._broken.is_set():
            if time.monotonic() > deadline + 5:
                log.error("a step didn't end within 5 s of the drain's deadline")
                return

    def _close(self) -> None:
        for socket in (*self._sockets, self._router):
            socket.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
        # ZeroMQ leaves the file behind. It is removed while the record is locked, since the next worker on this record
        # binds the same path.
        if (path := _socket_file(self.config.endpoint)) is not None:
            path.unlink(missing_ok=True)
        self._record.close()


def _raise_file_limit() -> None:
    """Let this process have `_DESCRIPTORS` files and connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _socket_file(endpoint: str) -> Path | None:
    """Return the file of an ipc endpoint."""
    scheme, _, path = endpoint.partition("://")
    return Path(path) if scheme == "ipc" else None
