"""Compiling grammars in processes of their own first, since nothing else can end a compilation that goes on too long.

Most grammars end at llguidance's own limits; for some (an integer that is a multiple of 999983) it works for minutes.
A process that has read the vocabulary forks one for each grammar, so that grammars are checked beside each other and
none of them costs the vocabulary when it is ended. Memory is bounded, and the processor's time for a grammar: that time
alone is a verdict, since a process that is silent or gone may be so for the sake of others.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from inference.errors import OverloadedError
from inference.guidance import library

SECONDS = (
    0.5  # of a processor, for one grammar: what passes is compiled again in the worker, where steps wait meanwhile
)
START_SECONDS = 30.0
WALL_SECONDS = 6.0  # where others use the processors too; a gateway gives up on its call after 10
MEMORY = 2 << 30  # bytes of addresses

TOO_LONG = f"compiling it takes more than {SECONDS:g} s"
_NO_MEMORY = "no memory"

log = logging.getLogger(__name__)


class Checker:
    """Compiles grammars for one vocabulary: `serialized`, `size` and `ends` as `library.Vocabulary` takes them.

    The process is started when the first grammar comes, and again after it was ended. For any threads.
    """

    def __init__(self, serialized: str, size: int, ends: frozenset[int]) -> None:
        self._vocabulary = _line([serialized, size, sorted(ends)])
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: socket.socket | None = None  # to the process: a connection for each grammar
        self._lock = threading.Lock()

    def problem(self, grammar: str) -> str | None:
        """Return why `grammar` can't be compiled, TOO_LONG among others; None when it can. Raise `OverloadedError` when
        that can't be told now.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                process = self._running()
                assert self._calls is not None
                with suppress(OSError):  # it has just ended: there will be no answer
                    socket.send_fds(self._calls, [b"."], [theirs.fileno()])
            answer = _asked(ours, _line(grammar), WALL_SECONDS)
        if answer:
            problem = json.loads(answer)
            if problem == TOO_LONG:
                log.warning("a grammar of %d characters: %s", len(grammar), TOO_LONG)
            if problem != _NO_MEMORY:
                return None if problem is None else str(problem)
        if answer is None:
            with self._lock:
                if self._process is process:  # nobody has done it yet
                    self._end()
        log.warning("a grammar of %d characters was not checked", len(grammar))
        raise OverloadedError("What guides the answer could not be compiled now: try again.")

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process, started if need be; raise `OverloadedError` when it can't be now."""
        if self._process is not None and self._is_gone():
            self._end()
        if self._process is None:
            self._process = self._started()
        return self._process

    def _is_gone(self) -> bool:
        """Whether its end of the socket is closed, which comes before a process that was killed can be waited for."""
        assert self._calls is not None
        end = select.poll()
        end.register(self._calls, select.POLLIN)  # it says nothing once it has started
        return bool(end.poll(0))

    def _started(self) -> subprocess.Popen[bytes]:
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "inference.guidance.checking"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._calls = ours
        self._finalizer = weakref.finalize(self, _end, process, ours)
        if not _asked(ours, self._vocabulary, START_SECONDS):
            self._finalizer()
            raise OverloadedError("The process that compiles grammars could not be started now: try again.")
        return process

    def _end(self) -> None:
        self._process = None
        self._finalizer()


def _asked(connection: socket.socket, line: bytes, seconds: float) -> bytes | None:
    """Return the line that answers `line`, empty where the other end is closed without; None when time is over."""
    until = time.monotonic() + seconds
    answer = b""
    try:
        connection.settimeout(seconds)
        connection.sendall(line)
        while not answer.endswith(b"\n"):
            connection.settimeout(max(0.001, until - time.monotonic()))
            read = connection.recv(65536)
            if not read:
                return b""
            answer += read
    except TimeoutError:
        return None
    except OSError:
        return b""
    return answer


def _end(process: subprocess.Popen[bytes], calls: socket.socket) -> None:
    process.kill()
    process.wait()
    calls.close()


def serve() -> None:
    """Fork a process for each connection that comes through the standard input, until that ends; first of all a line
    with the vocabulary comes.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(5)  # the engine's steps come first
    calls = socket.socket(fileno=0)
    serialized, size, ends = json.loads(_read(calls))
    vocabulary = library.Vocabulary(serialized, size, frozenset(ends))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    calls.sendall(_line(None))
    while True:
        _, connections, _, _ = socket.recv_fds(calls, 1, 1)
        if not connections:
            return
        with socket.socket(fileno=connections[0]) as connection:
            if os.fork() == 0:
                calls.close()
                _check(vocabulary, connection)


def _check(vocabulary: library.Vocabulary, connection: socket.socket) -> None:
    """Answer the connection's grammar from a process that is ended after `SECONDS`; end this one."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        grammar = json.loads(_read(connection))
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of its own processor time: its signal ends it
            try:
                vocabulary.compile(grammar)
                problem = None
            except ValueError as error:
                problem = str(error)
            except MemoryError:
                problem = _NO_MEMORY
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(_line(problem))
        elif os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGPROF:
            connection.sendall(_line(TOO_LONG))
    finally:
        os._exit(0)


def _read(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = connection.recv(1 << 20)
        if not read:
            raise EOFError
        line += read
    return line


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    serve()
