"""A redis-server for one test run: a free port, nothing on disk, no leftovers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.ports import lease_port


@dataclass
class RedisServer:
    """A server that a test may stop, freeze, empty and start again on its port."""

    folder: Path
    port: int
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @classmethod
    def start(cls) -> RedisServer:
        """Start a server on a free port."""
        server = cls(Path(tempfile.mkdtemp(prefix="sluice-redis-", dir="/tmp")), lease_port())
        server.start_again()
        return server

    def start_again(self) -> None:
        """Start it, empty, and return once it answers."""
        binary = shutil.which("redis-server")
        if binary is None:
            raise RuntimeError("redis-server is missing: run `make system` (Debian: redis-server)")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self.options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, *options, "--dir", str(self.folder)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + 20
        while self.ask("PING") != "+PONG":
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.01)

    def ask(self, *words: str) -> str:
        """Return the first line of the answer to a command, nothing where nobody answers."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall((" ".join(words) + "\r\n").encode())
                return connection.makefile("rb").readline().decode().strip()
        except OSError:
            return ""

    def counted(self, name: str) -> str:
        """Return a value of INFO."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"INFO everything\r\nQUIT\r\n")
            text = connection.makefile("rb").read().decode()
        return next(line.partition(":")[2] for line in text.splitlines() if line.startswith(f"{name}:"))

    def flush(self) -> None:
        """Have it forget everything, scripts too."""
        assert self.ask("FLUSHALL") == "+OK"
        assert self.ask("SCRIPT", "FLUSH") == "+OK"

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay open and nobody answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; all that it had is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
