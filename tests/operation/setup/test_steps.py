"""Steps are for people: on a terminal each has its line, elsewhere there is nothing."""

import io
import os
import pty
from dataclasses import replace

import pytest

from billing.services import plans
from gateway.logs import CLEAR_LINE, for_reader
from operation.setup.steps import Steps, told, welcome


@pytest.fixture
def terminal():
    """A terminal: the stream to write to, and what reads the line that came out of it."""
    main, side = pty.openpty()
    with os.fdopen(side, "w") as stream, os.fdopen(main, newline="\n") as screen:
        yield stream, screen.readline


def test_a_step_on_a_terminal_ends_with_its_time(terminal):
    stream, read = terminal
    with Steps(stream).step("database"):
        pass
    assert "database" in (said := read())
    assert said.rstrip().endswith(" s")
    assert "done in 0." in said


def test_a_step_that_fails_says_so(terminal):
    stream, read = terminal
    with pytest.raises(ValueError, match="no"), Steps(stream).step("database"):
        raise ValueError("no")
    assert "failed in 0." in read()


def test_a_step_that_somebody_ends_is_not_called_a_failure(terminal):
    stream, read = terminal
    with pytest.raises(KeyboardInterrupt), Steps(stream).step("first models"):
        raise KeyboardInterrupt
    assert "stopped in 0." in read()


def test_a_line_of_the_log_takes_the_place_of_a_step_that_goes_on(terminal):
    stream, read = terminal
    steps = Steps(stream)
    steps.show("gateway")
    stream.write(for_reader("12:00:00 warning: odd") + "\n")
    steps.end("gateway", "done")
    steps.end("never shown", "ready")
    assert read().rpartition(CLEAR_LINE)[2].strip() == "12:00:00 warning: odd"
    assert " ".join(read().rpartition(CLEAR_LINE)[2].split()[:3]) == "gateway done in"
    assert read().rpartition(CLEAR_LINE)[2].split() == ["never", "shown", "ready"]


def test_no_line_of_the_welcome_is_wider_than_a_terminal(db, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    settings.SLUICE_HOME = tmp_path / "var"
    settings.SLUICE_HOME.mkdir()
    plans.ensure_default_plans()
    facts = welcome("http://127.0.0.1:18000")
    many = replace(facts, models=[f"some-model-{number}" for number in range(30)])
    lines = [line.rpartition(CLEAR_LINE)[2] for line in told(many).splitlines()]
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    shown = "\n".join(lines)
    assert facts.api_key in shown, "whole, to be copied"
    assert facts.sign_in_url in shown
    assert "some-model-29" in shown


def test_elsewhere_nothing_is_said():
    out = io.StringIO()
    with Steps(out).step("database"):
        pass
    assert out.getvalue() == ""
