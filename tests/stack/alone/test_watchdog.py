"""Processes that are stopped, as a hang looks from outside: replaced within seconds, and the books are right."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from tests.stack.stack import assert_books_are_right, running_stack
from tests.stack.web import ask

pytestmark = [pytest.mark.stack, pytest.mark.slow]

SILENCE = 5


@pytest.fixture(scope="module")
def runtime():
    with tempfile.TemporaryDirectory(prefix="sluice-rt-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def stack(runtime):
    with running_stack({"SLUICE_WATCHDOG_SECONDS": str(SILENCE), "SLUICE_RUNTIME_DIR": str(runtime)}) as running:
        yield running
        assert running.stop() == 0, "".join(running.said[-40:])


def answer(stack):
    body = {"model": "fake-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    return ask(f"{stack.base_url}/v1/chat/completions", body, key=stack.tenants["max"]["key"])


def another(stack, child, before):
    """The process id of the next `child`; bounded by the test's timeout."""
    while True:
        with contextlib.suppress(LookupError):
            if (pid := stack.pid_of(child)) != before:
                return pid
        time.sleep(0.05)


def until_answered(stack):
    while True:
        with contextlib.suppress(OSError):
            if answer(stack).status == 200:
                return
        time.sleep(0.1)


def until_alive(runtime, child):
    """Wait for the child's first sign of life: imports are no hang, however long they take."""
    while not (runtime / f"{child}.heartbeat").exists():
        time.sleep(0.05)


def until_said(stack, words):
    stack.wait_until_said(lambda said: any(words in line for line in said))


def test_stopped_processes_are_replaced(stack, runtime):
    assert answer(stack).status == 200
    until_alive(runtime, "jobs")
    hung = {child: stack.pid_of(child) for child in ("gateway", "worker", "jobs")}
    for pid in hung.values():
        os.kill(pid, signal.SIGSTOP)
    for child, pid in hung.items():
        patience = SILENCE * (2 if child == "jobs" else 1)
        until_said(stack, f"{child} gave no sign of life for {patience} s: killed")
        until_said(stack, f"{child} ended (signal SIGKILL)")
        assert another(stack, child, pid) != pid
    until_answered(stack)
    found = stack.audit()
    assert_books_are_right(found)
