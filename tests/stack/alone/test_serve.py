"""`manage.py serve` as an operator meets it: in a terminal, stopped, started twice, without what it needs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path

import aiohttp
import pytest

from inference.logs import CLEAR_LINE
from tests.services.ports import lease_port
from tests.stack.clients import read_stream
from tests.stack.stack import (
    DEAD_PROXY,
    PATIENCE,
    ROOT,
    Stack,
    assert_nothing_is_left,
    environment_of,
    migrated,
    socket_file,
)

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def home():
    """A stack that nobody serves, in an environment whose proxy reaches nothing: nothing of ours may ask it."""
    with tempfile.TemporaryDirectory(prefix="sluice-stack-") as folder, migrated(Path(folder)):
        port = lease_port()
        own = {"SLUICE_BASE_URL": f"http://127.0.0.1:{port}", "COLUMNS": "80", **DEAD_PROXY}
        environment = environment_of(Path(folder), **own)
        stack = Stack(Path(folder), environment, port, {})
        try:
            stack.tenants = stack.script("seed", {"chat": {"step_seconds": 0.02, "text": "word " * 2000}})
            yield stack
        finally:
            stack.close()


@pytest.fixture(scope="module")
def serving(home):
    """It, served with ``--welcome`` in the foreground of a terminal until a test ends it, in their order."""
    with Terminal(home, "--welcome") as terminal:
        assert terminal.welcomed.wait(PATIENCE), terminal.said
        home.process = terminal.process
        yield terminal
        home.process = None


def request_of(stack, **more):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "go on"}], **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {stack.tenants['max']['key']}"}}


def refusals(stack, *lines):
    """What commands that must be refused end with and complain of, one after the other: at the same time, one of them
    could find the home's lock taken by the other.
    """
    ends = [stack.script("manage", *line) for line in lines]
    assert not any("Traceback" in complaint for _, _, complaint in ends)
    return [(code, complaint) for code, _, complaint in ends]


class Terminal:
    """`serve` in the foreground of a terminal of its own."""

    def __init__(self, stack, *options):
        self.welcomed = threading.Event()
        self.said = ""
        self._main, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(stack.port), *options],
            cwd=ROOT,
            env=stack.environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - before any thread of ours
        )
        os.close(terminal)
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def press_ctrl_c(self):
        os.write(self._main, b"\x03")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()  # and not killed: its children would outlive it for a moment
        self.process.wait(PATIENCE)
        self._listener.join()
        os.close(self._main)

    def _listen(self):
        while True:
            try:
                self.said += os.read(self._main, 4096).decode()
            except OSError:  # the terminal's last process has gone
                return
            if "capital of France" in self.said:
                self.welcomed.set()


async def stream_until_cut(stack, started, **more):
    """Read a stream to its end or its cut; set `started` after some tokens."""
    async with aiohttp.ClientSession(stack.base_url, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        return await read_stream(session, request_of(stack, stream=True, **more), started)


def test_a_port_in_use_is_named(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = refusals(home, ["serve", "--port", port], ["gateway", "--port", port])
    assert [code for code, _ in refused] == [1, 75]
    assert all(f"port {port}" in complaint for _, complaint in refused)


def test_serve_without_its_tables_says_what_to_run(home, tmp_path):
    fresh = {"SLUICE_HOME": str(tmp_path), "DATABASE_URL": f"sqlite:///{tmp_path}/new.sqlite3"}
    refused = home.command("serve", **fresh)
    assert refused.returncode == 1
    assert "manage.py setup" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_on_a_terminal_a_start_speaks_to_people_and_says_how_to_begin_last(home, serving):
    found = home.command("doctor", SLUICE_BASE_URL="http://127.0.0.1:1")
    assert f"ok    gateway: {home.base_url} is ready" in found.stdout, "the home knows the port"
    lines = [line.rpartition(CLEAR_LINE)[2].strip("\r") for line in serving.said.split("\n")]
    assert max(map(len, lines)) <= 80
    begins = [line.strip().partition("  ")[0].partition(" in ")[0] for line in lines if line]
    end = begins.index("ready")
    assert set(begins[1:end]) == {"fake-chat", "fake-embed"}
    assert [begins[0], *begins[end:][:4]] == ["gateway", "ready", "Sluice is set up", "models", "API key"], (
        "and no more"
    )
    assert "capital of France" in [line for line in lines if line][-1], "nothing after it"


def test_the_containers_health_check_asks_no_proxy(home, serving):
    command = [sys.executable, str(ROOT / "deploy/docker/healthy.py"), "gateway"]
    done = subprocess.run(command, env={**home.environment, "SLUICE_METRICS_PORT": str(home.port)}, check=False)
    assert done.returncode == 0


def test_a_second_gateway_on_a_home_names_the_first(home, serving):
    first = home.pid_of("gateway")
    for code, complaint in refusals(home, ["serve", "--port", "1"], ["gateway", "--port", "1"]):
        assert code == 75
        assert f"already served by process {first}" in complaint


def test_hangup_restarts_the_gateway_of_an_embedded_home_and_refuses_no_connection(home, serving):
    """It can't run beside its successor there: what connects meanwhile waits in the socket that `serve` keeps open."""
    before = home.pid_of("gateway")

    async def ask_all_along():
        seen = []
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(home.base_url, connector=connector, timeout=timeout) as session:
            home.process.send_signal(signal.SIGHUP)
            while not seen or home.pids_of("gateway") in ([], [before]):
                async with session.post("/v1/chat/completions", **request_of(home, max_tokens=1)) as answer:
                    seen.append(answer.status if answer.status == 200 else await answer.text())
        return seen

    assert {str(one) for one in asyncio.run(ask_all_along())} <= {"200"}


def test_ctrl_c_in_a_terminal_leaves_no_process_socket_or_hold(home, serving):
    async def ended_in_mid_stream():
        started = asyncio.Event()
        reading = asyncio.create_task(stream_until_cut(home, started, max_tokens=2000))
        await started.wait()
        serving.press_ctrl_c()
        return await asyncio.to_thread(home.process.wait, PATIENCE), await reading

    assert socket_file(home.home).is_socket()
    code, _ = asyncio.run(ended_in_mid_stream())
    home.process = None
    assert code == 0, serving.said
    lines = [line.strip() for line in serving.said.splitlines()]
    assert [line for line in lines if "Traceback" in line or line.startswith("{")] == []
    assert not list(home.home.glob("*.address"))
    assert_nothing_is_left(home)
