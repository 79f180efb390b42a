"""Steps are for people: on a terminal each has its line, elsewhere there is nothing."""

import io
import os
import pty

import pytest

from operation.setup.steps import Steps


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


def test_elsewhere_nothing_is_said():
    out = io.StringIO()
    with Steps(out).step("database"):
        pass
    assert out.getvalue() == ""
