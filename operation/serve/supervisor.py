"""Run Sluice's processes as one: started together, restarted with back-off, stopped in order, none left behind.

Each child leads a process session of its own, so that a terminal's Ctrl-C reaches only the supervisor, and gets
SIGTERM when the supervisor dies: from the kernel on Linux, elsewhere from a small process beside it (`leash`).
Everything happens on the main thread: the kernel's parent-death signal follows the thread that spawned. A child that
has a `silence` and touches its heartbeat no more is killed and started again. SIGHUP replaces children one by one, each
by a successor that serves before it ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from operation.serve import leash, processes
from operation.serve.processes import ChildSpec, Process, spawn

FATAL = os.EX_TEMPFAIL  # a child lacks what no start of ours gets it, a port or its home's lock; a later one may
_GIVEN_UP = (FATAL, os.EX_CONFIG)  # EX_CONFIG: settings are wrong
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
ECHO = 1.0
STEADY = 30.0  # a child that ran this long is forgiven its earlier failures
PATIENCE = 30.0  # for a child that is to end, or to start anew, while the others go on
START_SECONDS = 120.0  # for a successor to show life
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@dataclass(slots=True, eq=False)
class _Child:
    """Processes kept running by one name: the current one, sometimes its successor beside it, or its predecessor."""

    spec: ChildSpec
    process: Process | None = None
    successor: Process | None = None
    leaving: Process | None = None
    failures: int = 0
    start_at: float = 0.0
    wanted: bool = True
    restarting: bool = False
    starts: int = 0

    @property
    def processes(self) -> list[Process]:
        """All of its processes that run."""
        return [one for one in (self.process, self.successor, self.leaving) if one is not None]


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
    """Keeps children running until SIGINT or SIGTERM, then ends them in the order in which they were given.

    `tick` is called about every quarter of a second, each second once all has run for long; `say` gets one line for
    each thing worth telling. SIGHUP calls `hangup`; without one, or when it tells that our terminal has gone, it ends
    everything too.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        tick: Callable[[Supervisor], None] = lambda _: None,
        say: Callable[[str], None] | None = None,
        hangup: Callable[[Supervisor], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}
        self._tick = tick
        self._say = say or _to_stderr
        self._hangup = hangup
        self._clock = clock
        self._leash: subprocess.Popen[bytes] | None = None
        self._rolling: deque[_Child] = deque()

    def run(self) -> int:
        """Run until told to stop; return 0, or the code of a child that was given up after everything was stopped."""
        with _Signals() as self._signals:
            return self._run()

    def has_shown_life(self, name: str) -> bool:
        """Whether the child runs, and has touched its heartbeat if it has one."""
        process = self._children[name].process
        return process is not None and process.has_shown_life

    def enable(self, name: str) -> None:
        """Start the child at the next turn, if it isn't running."""
        self._children[name].wanted = True

    def disable(self, name: str) -> None:
        """Don't start the child (any more); a running one is asked to end."""
        child = self._children[name]
        child.wanted = False
        self._ask_to_end(child.process)

    def restart(self, name: str) -> None:
        """Ask the child to end (it drains), and start it again once it has."""
        child = self._children[name]
        child.wanted = True
        if child.process is not None:
            child.restarting = True
            self._ask_to_end(child.process)

    def roll(self, names: Sequence[str]) -> None:
        """Replace these children one after the other: each ends once its successor has shown life.

        If a successor doesn't come up, everything stays as it is.
        """
        for name in names:
            if (child := self._children[name]) not in self._rolling:
                self._rolling.append(child)

    def _ask_to_end(self, process: Process | None) -> None:
        if process is not None:
            process.ask_to_end(self._clock(), process.spec.deadline + PATIENCE)

    def _run(self) -> int:
        code = 0
        if not processes.HAS_DEATH_SIGNAL:
            command = [sys.executable, leash.__file__]
            self._leash = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - ours
            self._say("this system tells no process of its parent's death: a process beside this one does")
        try:
            while True:
                self._start_due()
                signals = self._signals.wait(self._rest()) - {signal.SIGCHLD}
                if signals == {signal.SIGHUP} and self._hangup is not None and not _terminal_is_gone():
                    self._hangup(self)
                elif signals:
                    return code
                self._replace_silent()
                code = self._reap()
                if code:
                    return code
                self._roll_on()
                self._tick(self)
        finally:
            self._stop()

    def _rest(self) -> float:
        """Return for how many seconds to wait for a signal, such as that of a child's end."""
        steady_since = self._clock() - STEADY
        is_steady = not self._rolling and all(
            child.process is not None and child.process.started_at < steady_since and len(child.processes) == 1
            for child in self._children.values()
            if child.wanted
        )
        return 1.0 if is_steady else 0.25

    def _start_due(self) -> None:
        now = self._clock()
        for child in self._children.values():
            if child.wanted and child.process is None and child.start_at <= now:
                child.process = self._start(child)

    def _start(self, child: _Child) -> Process:
        beside = child.process or child.leaving
        process = spawn(child.spec, self._clock(), replaces=child.starts > 0, beside=beside)
        child.starts += 1
        self._tell_leash(f"+{process.popen.pid}")
        return process

    def _tell_leash(self, line: str) -> None:
        if self._leash is not None and self._leash.stdin is not None:
            self._leash.stdin.write(f"{line}\n".encode())
            self._leash.stdin.flush()

    def _running(self) -> Iterator[Process]:
        for child in self._children.values():
            yield from child.processes

    def _replace_silent(self) -> None:
        """Kill each child that gives no sign of life any more; what is stopped or stuck obeys nothing milder."""
        for process in self._running():
            if process.is_silent(self._clock()) and not process.has_ended:
                self._say(f"{process.spec.name} gave no sign of life for {process.spec.silence:g} s: killed")
                process.kill()

    def _reap(self) -> int:
        """Schedule the next start of each child that ended; return the code of one that can't be helped."""
        now = self._clock()
        for process in self._running():
            if process.kill_at is not None and now > process.kill_at and not process.has_ended:
                self._say(f"{process.spec.name} did not end within {process.patience:g} s: killed")
                process.kill()
                process.popen.wait()
        for child in self._children.values():
            if child.leaving is not None and child.leaving.has_ended:
                self._forget(child.leaving)
                child.leaving = None
            if child.process is None or not child.process.has_ended:
                continue
            code, ran = child.process.popen.returncode, now - child.process.started_at
            self._forget(child.process)
            child.process = None
            # What has run once may again, when a person has mended it; until then the others go on.
            if code in _GIVEN_UP and child.starts == 1:
                return code
            if child.restarting or not child.wanted:
                child.restarting, child.failures, child.start_at = False, 0, now
                continue
            child.failures = 1 if ran > STEADY else child.failures + 1
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (child.failures - 1))
            child.start_at = now + delay
            self._say(f"{child.spec.name} ended ({_reason(code)}) after {ran:.1f} s; starting again in {delay:g} s")
        return 0

    def _forget(self, process: Process) -> None:
        self._tell_leash(f"-{process.popen.pid}")
        process.forget()

    def _roll_on(self) -> None:
        """Take the next step of a rolling restart, if one is under way."""
        if not self._rolling:
            return
        child, now = self._rolling[0], self._clock()
        if child.leaving is not None:
            return  # one at a time: two processes of one name are as many as there is room for
        if child.successor is None:
            if child.process is None or not child.wanted:
                self._rolling.popleft()  # whatever starts next is new anyway
            else:
                child.successor = self._start(child)
            return
        if child.successor.has_ended or now - child.successor.started_at > START_SECONDS:
            self._say(f"{child.spec.name} could not be replaced: its successor did not come up; all stays as it is")
            self._forget(child.successor)
            child.successor = None
            self._rolling.clear()
        elif child.successor.has_shown_life:
            child.process, child.successor, child.leaving = child.successor, None, child.process
            child.failures = 0
            self._rolling.popleft()
            if child.leaving is not None:
                patience = child.spec.farewell + child.spec.deadline + PATIENCE
                child.leaving.ask_to_end(now, patience, signal.SIGHUP)
                self._say(f"{child.spec.name} is replaced")

    def _stop(self) -> None:
        """End the children one after the other: SIGTERM, and SIGKILL after the deadline or a second signal.

        A signal within the first second is the echo of the first one: tools that end a process group also end its
        leader, which passes the signal on.
        """
        began, hurried = self._clock(), False
        for _, group in groupby(self._children.values(), lambda child: child.spec.group or child.spec.name):
            running = [process for child in group for process in child.processes]
            for process in running:
                self._ask_to_end(process)
            until = self._clock() + max((process.spec.deadline for process in running), default=0.0)
            while not all(one.has_ended for one in running) and self._clock() < until and not hurried:
                signals = self._signals.wait(min(0.25, max(0.0, until - self._clock()))) - {signal.SIGCHLD}
                hurried = bool(signals) and self._clock() - began > ECHO
            for process in running:
                if not process.has_ended:
                    self._say(f"{process.spec.name} did not end within {process.spec.deadline:g} s: killed")
                process.forget()
        for child in self._children.values():
            child.process = child.successor = child.leaving = None
        if self._leash is not None:
            self._leash.kill()
            self._leash.communicate()


def _terminal_is_gone() -> bool:
    """True when SIGHUP came because the terminal that we began on was closed."""
    for descriptor in (0, 1, 2):
        try:
            os.tcgetpgrp(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                return True
    return False


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
