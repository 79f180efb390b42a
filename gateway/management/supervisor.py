"""Run Sluice's processes as one: started together, restarted with back-off, stopped in order, none left behind.

Each child leads a process session of its own, so that a terminal's Ctrl-C reaches only the supervisor, and gets
SIGTERM when the supervisor dies: from the kernel on Linux, elsewhere from a small process beside it (`leash`).
Everything happens on the main thread: the kernel's parent-death signal follows the thread that spawned. A child that
has a `silence` and touches its heartbeat no more is killed and started again.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gateway.management import leash
from gateway.management.watchdog import VARIABLE, Watchdog

FATAL = 78  # EX_CONFIG: a child that exits so can't be helped by another start
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
ECHO = 1.0
STEADY = 30.0  # a child that ran this long is forgiven its earlier failures
PATIENCE = 30.0  # for a child that is to end, or to start anew, while the others go on
_PR_SET_PDEATHSIG = 1
HAS_DEATH_SIGNAL = sys.platform == "linux"
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to keep running: its command, and how long it may take to end after SIGTERM.

    With a `silence` it is replaced when it hasn't touched its `heartbeat` file for so many seconds.
    """

    name: str
    command: Sequence[str]
    deadline: float
    silence: float = 0.0
    heartbeat: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    watchdog: Watchdog | None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    start_at: float = 0.0
    wanted: bool = True
    restarting: bool = False
    kill_at: float | None = None


class _Signals:
    """Signals as data, whichever thread the kernel hands them to (a database pool has threads of its own)."""

    def __enter__(self) -> Self:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, seconds: float) -> set[int]:
        """Return the signals that have come, waiting at most `seconds` for one."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return set()
        return set(os.read(self._reading, 4096))


class Supervisor:
    """Keeps children running until SIGINT, SIGTERM or SIGHUP, then ends them in the order in which they were given.

    `tick` is called about every quarter of a second while all runs; `say` gets one line for each thing worth telling.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        tick: Callable[[Supervisor], None] = lambda _: None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = {spec.name: _Child(spec, _watchdog(spec)) for spec in specs}
        self._tick = tick
        self._say = say or _to_stderr
        self._clock = clock
        self._leash: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until told to stop; return 0, or a child's FATAL after everything was stopped."""
        with _Signals() as self._signals:
            return self._run()

    def is_enabled(self, name: str) -> bool:
        """Whether the child is meant to run."""
        return self._children[name].wanted

    def enable(self, name: str) -> None:
        """Start the child at the next turn, if it isn't running."""
        self._children[name].wanted = True

    def disable(self, name: str) -> None:
        """Don't start the child (any more); a running one is asked to end."""
        child = self._children[name]
        child.wanted = False
        self._ask_to_end(child)

    def restart(self, name: str) -> None:
        """Ask the child to end (it drains), and start it again once it has."""
        child = self._children[name]
        child.wanted = True
        if child.process is not None:
            child.restarting = True
            self._ask_to_end(child)

    def _ask_to_end(self, child: _Child) -> None:
        """Send SIGTERM, once: a second one would cut a drain short."""
        if child.process is not None and child.kill_at is None:
            child.kill_at = self._clock() + child.spec.deadline + PATIENCE
            child.process.terminate()

    def _run(self) -> int:
        code = 0
        if not HAS_DEATH_SIGNAL:
            command = [sys.executable, leash.__file__]
            self._leash = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - ours
            self._say("this system tells no process of its parent's death: a process beside this one does")
        try:
            while True:
                self._start_due()
                if self._signals.wait(0.25) - {signal.SIGCHLD}:
                    return code
                self._replace_silent()
                code = self._reap()
                if code:
                    return code
                self._tick(self)
        finally:
            self._stop()

    def _start_due(self) -> None:
        now = self._clock()
        for child in self._children.values():
            if child.wanted and child.process is None and child.start_at <= now:
                if child.watchdog is not None:
                    child.watchdog.restart(now)
                child.process = _spawn(child.spec)
                child.started_at = now
                self._tell_leash(f"+{child.process.pid}")

    def _tell_leash(self, line: str) -> None:
        if self._leash is not None and self._leash.stdin is not None:
            self._leash.stdin.write(f"{line}\n".encode())
            self._leash.stdin.flush()

    def _replace_silent(self) -> None:
        """Kill each child that gives no sign of life any more; what is stopped or stuck obeys nothing milder."""
        for child in self._children.values():
            if child.process is None or child.watchdog is None or child.kill_at is not None:
                continue
            if child.watchdog.is_silent(self._clock()) and child.process.poll() is None:
                self._say(f"{child.spec.name} gave no sign of life for {child.spec.silence:g} s: killed")
                _kill_session(child.process)

    def _reap(self) -> int:
        """Schedule the next start of each child that ended; return FATAL when one can't be helped."""
        for child in self._children.values():
            if child.process is not None and child.kill_at is not None and self._clock() > child.kill_at:
                self._say(f"{child.spec.name} did not end within {child.spec.deadline + PATIENCE:g} s: killed")
                _kill_session(child.process)
                child.process.wait()
            if child.process is None or child.process.poll() is None:
                continue
            code, ran = child.process.returncode, self._clock() - child.started_at
            self._tell_leash(f"-{child.process.pid}")
            _kill_session(child.process)
            child.process = child.kill_at = None
            if code == FATAL:
                return FATAL
            if child.restarting or not child.wanted:
                child.restarting, child.failures, child.start_at = False, 0, self._clock()
                continue
            child.failures = 1 if ran > STEADY else child.failures + 1
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (child.failures - 1))
            child.start_at = self._clock() + delay
            self._say(f"{child.spec.name} ended ({_reason(code)}) after {ran:.1f} s; starting again in {delay:g} s")
        return 0

    def _stop(self) -> None:
        """End the children one after the other: SIGTERM, and SIGKILL after the deadline or a second signal.

        A signal within the first second is the echo of the first one: tools that end a process group also end its
        leader, which passes the signal on.
        """
        began, hurried = self._clock(), False
        for child in self._children.values():
            process = child.process
            if process is None:
                continue
            self._ask_to_end(child)
            until = self._clock() + child.spec.deadline
            while process.poll() is None and self._clock() < until and not hurried:
                signals = self._signals.wait(min(0.25, max(0.0, until - self._clock()))) - {signal.SIGCHLD}
                hurried = bool(signals) and self._clock() - began > ECHO
            if process.poll() is None:
                self._say(f"{child.spec.name} did not end within {child.spec.deadline:g} s: killed")
            _kill_session(process)
            process.wait()
            child.process = None
            if child.watchdog is not None:
                child.watchdog.file.unlink(missing_ok=True)
        if self._leash is not None:
            self._leash.kill()
            self._leash.communicate()


def _watchdog(spec: ChildSpec) -> Watchdog | None:
    return Watchdog(spec.heartbeat, spec.silence) if spec.silence and spec.heartbeat is not None else None


def _spawn(spec: ChildSpec) -> subprocess.Popen[bytes]:
    supervisor = os.getpid()
    heartbeat = {VARIABLE: str(spec.heartbeat)} if spec.heartbeat is not None else {}
    prctl = ctypes.CDLL(None).prctl if HAS_DEATH_SIGNAL else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:  # it died before the signal was set
                os._exit(1)

    return subprocess.Popen(  # noqa: S603 - our own commands
        list(spec.command),
        env={**os.environ, **spec.environment, **heartbeat},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - one thread spawns, before any other exists
    )


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and what it left in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
