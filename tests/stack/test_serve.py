"""`manage.py serve` as an operator meets it: in a terminal, stopped, started twice, without what it needs."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest

from tests.stack.conftest import PATIENCE, ROOT, running_stack

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.fixture(scope="module")
def serving():
    """A stack that runs until one of these tests, in their order, ends it."""
    with running_stack(chat={"step_seconds": 0.02, "text": "word " * 2000}) as stack:
        yield stack
        stack.stop()


def request_of(stack, **more):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "go on"}], **more}
    return {"json": body, "headers": {"Authorization": f"Bearer {stack.tenants['max']['key']}"}}


def commands(stack, *lines, **environment):
    """Run commands on the stack's home, all at once, and return them done, whatever their exit status."""

    def run(line):
        return subprocess.run(
            [sys.executable, "manage.py", *line],
            cwd=ROOT,
            env={**stack.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, lines))


class Terminal:
    """`serve` in the foreground of a terminal of its own."""

    def __init__(self, stack, *options):
        self.welcomed = threading.Event()
        self.said = ""
        self._main, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(stack.port), *options],
            cwd=ROOT,
            env={**stack.environment, "NO_COLOR": "1"},
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


def processes_of(home):
    """The processes that work on `home`, by what their environment says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SLUICE_HOME={home}".encode() in environment:
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def socket_file(stack):
    spec = json.loads((stack.home / "worker-local.json").read_text())
    return Path(spec["endpoint"].removeprefix("ipc://"))


async def stream_until_cut(stack, started, **more):
    """Read a stream to its end or its cut; set `started` after some tokens."""
    events = []
    try:
        async with (
            aiohttp.ClientSession(stack.base_url, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session,
            session.post("/v1/chat/completions", **request_of(stack, stream=True, **more)) as answer,
        ):
            async for line in answer.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
                if len(events) == 5:
                    started.set()
    except aiohttp.ClientError as error:
        events.append(f"cut: {type(error).__name__}")
    return events


async def ended_in_mid_stream(stack, end):
    """Call `end` once a stream has tokens; return the exit code of `serve` and what the stream's client saw."""
    started = asyncio.Event()
    reading = asyncio.create_task(stream_until_cut(stack, started, max_tokens=2000))
    await started.wait()
    end()
    return await asyncio.to_thread(stack.process.wait, PATIENCE), await reading


def assert_nothing_is_left(stack):
    assert processes_of(stack.home) == []
    assert not socket_file(stack).exists()
    assert not socket_file(stack).parent.exists()
    found = stack.script("audit")
    assert found["holds"] == 0
    assert found["usage_sum"] == found["ledger_sum"] == found["recomputed_sum"]


def test_a_second_gateway_on_a_home_names_the_first(serving):
    if "DATABASE_URL" in serving.environment:
        pytest.skip("only an embedded home has the lock")
    first = serving.pid_of("gateway")
    for second in commands(serving, ["serve", "--port", "1"], ["gateway", "--port", "1"]):
        assert second.returncode == 75
        assert f"already served by process {first}" in second.stderr
        assert "Traceback" not in second.stderr


@pytest.mark.money
def test_sigterm_in_mid_stream_leaves_no_process_socket_or_hold(serving):
    assert socket_file(serving).is_socket()
    code, events = asyncio.run(ended_in_mid_stream(serving, lambda: serving.process.send_signal(signal.SIGTERM)))
    serving.process = None
    assert code == 0
    assert any(line.startswith("ready in") for line in serving.said)
    assert json.loads(events[-1])["error"]["code"] == "server_draining"
    assert [line for line in serving.said if "Traceback" in line] == []
    assert_nothing_is_left(serving)


def test_a_port_in_use_is_named(serving):
    if serving.process is not None:
        serving.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        # One after the other: at the same time, one of them could find the home's lock taken by the other.
        refused = [*commands(serving, ["serve", "--port", port]), *commands(serving, ["gateway", "--port", port])]
    assert [done.returncode for done in refused] == [1, 75]
    for done in refused:
        assert f"port {port}" in done.stderr
        assert "Traceback" not in done.stderr


def test_serve_without_its_tables_says_what_to_run(serving, tmp_path):
    fresh = {"SLUICE_HOME": str(tmp_path), "DATABASE_URL": f"sqlite:///{tmp_path}/new.sqlite3"}
    (refused,) = commands(serving, ["serve"], **fresh)
    assert refused.returncode == 1
    assert "manage.py setup" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.fixture(scope="module")
def terminal(serving):
    """`serve --welcome` on the stack's home, which nobody else serves then."""
    if serving.process is not None:
        serving.stop()
    with Terminal(serving, "--welcome") as terminal:
        assert terminal.welcomed.wait(PATIENCE), terminal.said
        serving.process = terminal.process  # whoever comes next finds that the home is served
        yield terminal


def test_on_a_terminal_a_start_speaks_to_people_and_says_how_to_begin_last(serving, terminal):
    (found,) = commands(serving, ["doctor"], SLUICE_BASE_URL="http://127.0.0.1:1")
    assert f"ok    gateway: {serving.base_url} is ready" in found.stdout, "the home knows the port"
    lines = [line.strip() for line in terminal.said.splitlines()]
    assert [line for line in lines if line.startswith("{")] == [], "nothing is written for machines"
    places = [
        next(number for number, line in enumerate(lines) if line.startswith(beginning))
        for beginning in ("fake-chat", "ready in", "API key", "sign in", "curl")
    ]
    assert places == sorted(places)


def test_ctrl_c_in_a_terminal_leaves_no_process_socket_or_hold(serving, terminal):
    code, _ = asyncio.run(ended_in_mid_stream(serving, terminal.press_ctrl_c))
    serving.process = None
    assert code == 0, terminal.said
    lines = [line.strip() for line in terminal.said.splitlines()]
    assert [line for line in lines if "Traceback" in line or line.startswith("{")] == []
    assert not list(serving.home.glob("*.address"))
    assert_nothing_is_left(serving)


def test_hangup_restarts_the_gateway_of_an_embedded_home_and_refuses_no_connection(serving):
    """It can't run beside its successor there: what connects meanwhile waits in the socket that `serve` keeps open."""
    if "DATABASE_URL" in serving.environment:
        pytest.skip("with PostgreSQL and Redis: test_gateways")
    if serving.process is None:
        serving.start()
    before = serving.pid_of("gateway")

    async def ask_all_along():
        seen = []
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(serving.base_url, connector=connector, timeout=timeout) as session:
            serving.process.send_signal(signal.SIGHUP)
            while not seen or serving.pids_of("gateway") in ([], [before]):
                async with session.post("/v1/chat/completions", **request_of(serving, max_tokens=1)) as answer:
                    seen.append(answer.status if answer.status == 200 else await answer.text())
        return seen

    assert {str(one) for one in asyncio.run(ask_all_along())} <= {"200"}
