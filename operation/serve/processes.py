"""A supervised process: what it is told as it starts, whether it lives, and how it is ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from base.heartbeat import REPLACES, VARIABLE


@contextmanager
def stopped_by_exit(message: str) -> Iterator[None]:
    """Within it SIGTERM, and a terminal that goes away, end the process by SystemExit with that message, so that what
    is half done is removed on the way; a second signal doesn't cut that short.
    """

    def stop(*_: Any) -> None:
        for number in former:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(message)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {each: found for each in numbers if (found := signal.getsignal(each)) is not signal.SIG_IGN}
    for number in former:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


START_SECONDS = 600.0  # until the first sign of life: imports and a slow disk are no hang
_LONGEST_TURN = 1.0


@dataclass(slots=True)
class Watchdog:
    """Counts how long `file` has not been touched, up to `limit` seconds.

    Only time in which the watcher itself ran counts: after a machine has slept, or the watcher was stopped, every file
    is old and nobody hangs.
    """

    file: Path
    limit: float
    _touched_at: int | None = field(default=None, init=False)
    _silence: float = field(default=0.0, init=False)
    _looked_at: float = field(default=0.0, init=False)

    def restart(self, now: float) -> None:
        """Forget the process before: another starts `now`."""
        self.file.unlink(missing_ok=True)
        self._touched_at, self._silence, self._looked_at = None, 0.0, now

    def is_silent(self, now: float) -> bool:
        """Look at the file; return whether it was left alone for too long. Called about four times a second."""
        self._silence += min(now - self._looked_at, _LONGEST_TURN)
        self._looked_at = now
        try:
            touched_at = self.file.stat().st_mtime_ns
        except FileNotFoundError:
            touched_at = None
        if touched_at != self._touched_at:
            self._touched_at, self._silence = touched_at, 0.0
        return self._silence > (START_SECONDS if touched_at is None else self.limit)


_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
HAS_DEATH_SIGNAL = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running: its command, and how long it may take to end after SIGTERM.

    With a `silence` it is replaced when it hasn't touched its `heartbeat` file for so many seconds. Children next to
    each other with one `group` are ended together. `descriptors` are open files that it gets under their numbers. Its
    variables are `environment`, on top of ours where it `inherits`. With a `farewell` it can run beside its successor:
    SIGHUP then tells it that it is replaced, and it ends by itself within so many seconds.
    """

    name: str
    command: Sequence[str]
    deadline: float
    silence: float = 0.0
    heartbeat: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    inherits: bool = True
    group: str = ""
    descriptors: tuple[int, ...] = ()
    farewell: float = 0.0


@dataclass(slots=True)
class Process:
    """A child that runs; `kill_at` is when its patience is over, once it was asked to end."""

    spec: ChildSpec
    popen: subprocess.Popen[bytes]
    heartbeat: Path | None
    watchdog: Watchdog | None
    started_at: float
    kill_at: float | None = None
    patience: float = 0.0
    _asked: int = 0  # the last signal

    @property
    def has_shown_life(self) -> bool:
        """True once it has touched its heartbeat; a child without one shows life by running."""
        return self.heartbeat is None or self.heartbeat.exists()

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more; it is waited for then."""
        return self.popen.poll() is not None

    def is_silent(self, now: float) -> bool:
        """Whether it has to be replaced: it gives no sign of life."""
        return self.watchdog is not None and self.kill_at is None and self.watchdog.is_silent(now)

    def ask_to_end(self, now: float, patience: float, number: int = signal.SIGTERM) -> None:
        """Send a signal, once: a second SIGTERM would cut a drain short. It has `patience` seconds to obey."""
        if self._asked not in (number, signal.SIGTERM):
            self._asked, self.patience, self.kill_at = number, patience, now + patience
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Kill it and what it left in its process group."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # all of it has ended

    def forget(self) -> None:
        """Remove what it left, once it has ended."""
        self.kill()
        self.popen.wait()
        if self.heartbeat is not None:
            self.heartbeat.unlink(missing_ok=True)


def spawn(spec: ChildSpec, now: float, *, replaces: bool = False, beside: Process | None = None) -> Process:
    """Start a child, whose heartbeat is another file than that of the one `beside` it. Only from the main thread.

    It is told when it `replaces` another of its name, which has ended or will.
    """
    heartbeat = spec.heartbeat
    if heartbeat is not None and beside is not None and beside.heartbeat == heartbeat:
        heartbeat = heartbeat.with_name(f"{heartbeat.name}.next")
    if heartbeat is not None:
        heartbeat.unlink(missing_ok=True)
    watchdog = Watchdog(heartbeat, spec.silence) if spec.silence and heartbeat is not None else None
    if watchdog is not None:
        watchdog.restart(now)
    told = {VARIABLE: str(heartbeat)} if heartbeat is not None else {}
    if replaces:
        told[REPLACES] = "1"
    return Process(spec, _popen(spec, told), heartbeat, watchdog, now)


def hide_environment() -> None:
    """Let no other process of this user read this one's environment or memory, as any may on Linux otherwise.

    What it executes isn't hidden by it, which therefore gets no secret. See prctl(2), PR_SET_DUMPABLE.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _popen(spec: ChildSpec, told: Mapping[str, str]) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()
    prctl = ctypes.CDLL(None).prctl if HAS_DEATH_SIGNAL else None

    inherited = {name: value for name, value in os.environ.items() if spec.inherits and name != "NOTIFY_SOCKET"}

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:  # it died before the signal was set
                os._exit(1)

    return subprocess.Popen(  # noqa: S603 - our own commands
        list(spec.command),
        env={**inherited, **spec.environment, **told},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=spec.descriptors,
        preexec_fn=prepare,  # noqa: PLW1509 - one thread spawns, before any other exists
    )
