"""A unit of `deploy/systemd`, run as systemd runs it: started again when it ends, killed when it stands still."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.stack.stack import PATIENCE, ROOT
from tests.stack.web import ask

UNITS = ROOT / "deploy" / "systemd"
TICK = 0.05


class Unit:
    """A gateway on `port`, by the settings of its unit's file; what it says goes to `log`."""

    def __init__(self, environment: Mapping[str, str], port: int, log: Path) -> None:
        text = (UNITS / "sluice-gateway@.service").read_text()
        self._settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        own = re.findall(r"^Environment=(SLUICE_REPLACES=\S+)$", text, re.MULTILINE)
        assert own, "the unit says that others serve meanwhile"
        self.port = port
        self.environment = {**environment, "SLUICE_METRICS_PORT": "0", **dict(line.split("=", 1) for line in own)}
        self.log = log
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._restarting = threading.Event()
        self._turn = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-notify-")
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._restarting.set()
        self.send(signal.SIGKILL)
        self._thread.join(PATIENCE)
        self._folder.cleanup()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def send(self, number: int) -> None:
        """Send the process a signal, if there is one."""
        with self._turn:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)

    def restart(self) -> None:
        """Do as ``systemctl restart``, and return when the process has been told to end."""
        self._restarting.set()
        self.send(signal.Signals[self._settings["KillSignal"]])

    def is_ready(self) -> bool:
        """Whether the gateway says that it serves."""
        with contextlib.suppress(OSError):
            return ask(f"http://{self.address}/readyz").status == 200
        return False

    def _supervise(self) -> None:
        while not self._closing.is_set():
            self._restarting.clear()
            self._run_once()
            self._restarting.wait(float(self._settings["RestartSec"]))

    def _run_once(self) -> None:
        """Start the process, and return when it has ended, by itself or by the watchdog."""
        heard = Path(self._folder.name) / f"notify-{self.starts}"
        words = self._settings["ExecStart"].partition("manage.py ")[2].replace("%i", str(self.port)).split()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes, self.log.open("ab") as log:
            notes.bind(str(heard))
            notes.settimeout(TICK)
            command = [sys.executable, str(ROOT / "manage.py"), *words]
            environment = {**self.environment, "NOTIFY_SOCKET": str(heard)}
            with self._turn:
                if self._closing.is_set():
                    return
                self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            self.starts += 1
            beat = 0.0
            while self.process.poll() is None:
                with contextlib.suppress(TimeoutError):
                    assert b"WATCHDOG=1" in notes.recv(4096)
                    beat = time.monotonic()
                if beat and time.monotonic() - beat > float(self._settings["WatchdogSec"]):
                    os.kill(self.process.pid, signal.Signals[self._settings["WatchdogSignal"]])
                    self.process.wait(PATIENCE)
