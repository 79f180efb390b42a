"""Compiling grammars in a process of its own first, since nothing else can end a compilation that goes on too long.

Most grammars end at llguidance's own limits; for some (an integer that is a multiple of 999983) it works for minutes.
The process has a bounded memory, and may take `SECONDS` of a processor for each grammar. That time alone is a verdict:
a process that is silent or gone may be so for the sake of others.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from inference.errors import OverloadedError
from inference.guidance import library

SECONDS = 2  # of a processor, for one grammar
START_SECONDS = 30.0
WALL_SECONDS = 6.0  # where others use the processors too; a gateway gives up on its call after 10
MEMORY = 2 << 30  # bytes of addresses

TOO_LONG = f"compiling it takes more than {SECONDS} s"

log = logging.getLogger(__name__)


class Checker:
    """Compiles grammars for one vocabulary: `serialized`, `size` and `ends` as `library.Vocabulary` takes them.

    The process is started when the first grammar comes, and again after it was ended. For one thread at a time.
    """

    def __init__(self, serialized: str, size: int, ends: frozenset[int]) -> None:
        self._vocabulary = _line([serialized, size, sorted(ends)])
        self._process: subprocess.Popen[bytes] | None = None

    def problem(self, grammar: str) -> str | None:
        """Return why `grammar` can't be compiled, TOO_LONG among others; None when it can. Raise `OverloadedError` when
        that can't be told now.
        """
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._start()
        answer = self._ask(_line(grammar), WALL_SECONDS)
        if answer is not None:
            problem = json.loads(answer)
            return None if problem is None else str(problem)
        status = self._end()
        if status == -signal.SIGXCPU:
            log.warning("a grammar of %d characters: %s", len(grammar), TOO_LONG)
            return TOO_LONG
        log.warning("a grammar of %d characters was not checked: the process ended with %d", len(grammar), status)
        raise OverloadedError("What guides the answer could not be compiled now: try again.")

    def _start(self) -> None:
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inference.guidance.checking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._finalizer = weakref.finalize(self, _end, self._process)
        if self._ask(self._vocabulary, START_SECONDS) is None:
            self._end()
            raise OverloadedError("The process that compiles grammars could not be started now: try again.")

    def _end(self) -> int:
        """End the process; return its exit status."""
        process, self._process = self._process, None
        assert process is not None
        self._finalizer()
        return process.returncode

    def _ask(self, line: bytes, seconds: float) -> bytes | None:
        """Return the line with which the process answers; None when it ends without, or time is over."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        until = time.monotonic() + seconds
        answer = b""
        while not answer.endswith(b"\n"):
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            read = os.read(process.stdout.fileno(), 65536)
            if not read:
                return None
            answer += read
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # of what it hadn't read
                pipe.close()


def serve() -> None:
    """Answer each line of the standard input with one, until it ends: a vocabulary, and then grammars."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(5)  # the engine's steps come first
    serialized, size, ends = json.loads(sys.stdin.buffer.readline())
    vocabulary = library.Vocabulary(serialized, size, frozenset(ends))
    _answer(None)
    for line in sys.stdin.buffer:
        used = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, resource.RLIM_INFINITY))
        try:
            vocabulary.compile(json.loads(line))
            problem = None
        except ValueError as error:
            problem = str(error)
        _answer(problem)


def _answer(problem: str | None) -> None:
    sys.stdout.buffer.write(_line(problem))
    sys.stdout.buffer.flush()


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


if __name__ == "__main__":
    serve()
