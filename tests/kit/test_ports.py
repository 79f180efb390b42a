"""No two test processes are given the same port."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.services import ports

ROOT = Path(__file__).resolve().parents[2]
ASK = "import sys; from tests.services import ports; print(ports._is_locked_for_us(int(sys.argv[1])))"


def locked_by_another(port):
    command = [sys.executable, "-c", ASK, str(port)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_a_leased_port_is_no_other_process_s():
    port = ports.lease_port()
    assert locked_by_another(port) == "False"


def test_ports_in_a_row_are_new_and_free(monkeypatch):
    first = ports.lease_port(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        busy = taken.getsockname()[1]
        refused = [first - 1, first, first + 1, busy - 1, busy]
        drawn, draw = iter(refused), ports._random.randrange
        monkeypatch.setattr(ports._random, "randrange", lambda *bounds: next(drawn, None) or draw(*bounds))
        assert ports.lease_port(2) not in refused
        assert next(drawn, None) is None
