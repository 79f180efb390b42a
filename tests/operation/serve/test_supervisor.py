"""The supervisor runs as its own process here, as it does for users; children are one-line Python programs."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from operation.serve import leash

SCRIPT = """
import sys
from operation.serve.processes import ChildSpec
from operation.serve.supervisor import Supervisor

def child(name, code, deadline=60):
    return ChildSpec(name, [sys.executable, "-c", code], deadline)

{body}
"""

POLITE = (
    "import os, signal, sys\\n"
    "def end(*_):\\n    os.write(1, (NAME + ' ended' + chr(10)).encode()); sys.exit(0)\\n"
    "signal.signal(signal.SIGTERM, end)\\n"
    "os.write(1, (NAME + ' up %d' % os.getpid() + chr(10)).encode())\\n"  # one write: children share the pipe
    "while True: signal.pause()\\n"
)


def polite(name):
    return f'"{POLITE}".replace("NAME", repr("{name}"))'


@pytest.fixture
def start():
    """Start a supervisor with `body`; whatever happens, it is gone and its pipes are closed at the end."""
    started = []

    def start(body, **options):
        code = SCRIPT.format(body=textwrap.dedent(body))
        process = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def read_until(stream, *needles):
    """Return the lines up to the one that completes `needles`; the test's timeout bounds the wait."""
    lines, missing = [], set(needles)
    for line in stream:
        lines.append(line.strip())
        missing -= {needle for needle in missing if needle in line}
        if not missing:
            return lines
    pytest.fail(f"ended before {missing}: {lines}")


def pid_of(lines, name):
    return next(int(line.split()[-1]) for line in lines if line.startswith(f"{name} up"))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid):
    """Wait for a process that isn't ours to end; bounded by the test's timeout."""
    while alive(pid):
        time.sleep(0.01)
    return True


def test_sigterm_ends_children_in_order_with_code_0(start):
    body = f"sys.exit(Supervisor([child('a', {polite('a')}), child('b', {polite('b')})]).run())"
    process = start(body)
    lines = read_until(process.stdout, "a up", "b up")
    process.send_signal(signal.SIGTERM)
    rest = [line.strip() for line in process.stdout]
    assert [line for line in rest if "ended" in line] == ["a ended", "b ended"]
    assert process.wait() == 0
    assert not alive(pid_of(lines, "a"))


def test_ctrl_c_in_a_terminal_reaches_only_the_supervisor(start):
    """Children sit in sessions of their own: each ends once, in order, though the terminal signals its whole group."""
    controller, terminal = pty.openpty()
    body = f"sys.exit(Supervisor([child('a', {polite('a')}), child('b', {polite('b')})]).run())"

    def own_terminal():
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(body, stdin=terminal, preexec_fn=own_terminal)
    read_until(process.stdout, "a up", "b up")
    os.write(controller, b"\x03")
    ended = [line.strip() for line in process.stdout if "ended" in line]
    assert ended == ["a ended", "b ended"]
    assert process.wait() == 0
    os.close(controller)
    os.close(terminal)


def test_a_child_that_dies_is_started_again_and_said(start):
    body = f"sys.exit(Supervisor([child('a', {polite('a')})]).run())"
    process = start(body, stderr=subprocess.PIPE)
    first = pid_of(read_until(process.stdout, "a up"), "a")
    os.kill(first, signal.SIGKILL)
    second = pid_of(read_until(process.stdout, "a up"), "a")
    assert second != first
    process.terminate()
    _, said = process.communicate()
    assert "a ended (signal SIGKILL)" in said
    assert process.returncode == 0


def test_a_deaf_child_is_killed_after_its_deadline_with_its_children(start):
    deaf = (
        '"import os, signal, subprocess, sys, time\\n'
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\\n"
        "print('a up', inner.pid, flush=True)\\n"
        'time.sleep(600)"'
    )
    process = start(f"sys.exit(Supervisor([child('a', {deaf}, 0.2)]).run())", stderr=subprocess.PIPE)
    inner = pid_of(read_until(process.stdout, "a up"), "a")
    process.terminate()
    _, said = process.communicate()
    assert "did not end within 0.2 s" in said
    assert process.returncode == 0
    assert gone(inner)


def test_the_echo_of_a_signal_hurries_nobody(start):
    process = start(f"sys.exit(Supervisor([child('a', {polite('a')}), child('b', {polite('b')})]).run())")
    read_until(process.stdout, "a up", "b up")
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    assert [line.strip() for line in process.stdout if "ended" in line] == ["a ended", "b ended"]
    assert process.wait() == 0


@pytest.mark.parametrize("code", [os.EX_TEMPFAIL, os.EX_CONFIG])
def test_a_fatal_child_ends_everything_with_its_code(start, code):
    body = f"sys.exit(Supervisor([child('a', 'import sys; sys.exit({code})'), child('b', {polite('b')})]).run())"
    process = start(body)
    assert process.wait() == code
    assert process.stdout.read().count("up") in {0, 1}


def test_a_child_that_ran_once_ends_nothing_of_the_others(start, tmp_path):
    """What came wrong meanwhile, in the database or a secret's file, is mended while the others serve."""
    once = tmp_path / "once"
    code = f"import pathlib, sys; a = pathlib.Path({str(once)!r}); ran = a.exists(); a.touch(); sys.exit(78 * ran)"
    process = start(
        f"sys.exit(Supervisor([child('a', {code!r}), child('b', {polite('b')})]).run())", stderr=subprocess.PIPE
    )
    assert any("a ended (exit code 78)" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "b ended" in process.stdout.read()


def test_children_end_when_the_supervisor_is_killed(start):
    process = start(f"sys.exit(Supervisor([child('a', {polite('a')})]).run())")
    pid = pid_of(read_until(process.stdout, "a up"), "a")
    process.kill()
    process.wait()
    assert gone(pid)


def test_restart_waits_for_the_end_and_disable_keeps_it_down(start):
    body = f"""
    seen = []
    def tick(supervisor):
        seen.append(1)
        if len(seen) == 4: supervisor.restart("a")
        if len(seen) == 12: supervisor.disable("a")
        if len(seen) == 20: print("over", flush=True)
    sys.exit(Supervisor([child('a', {polite("a")})], tick=tick).run())
    """
    process = start(body)
    lines = read_until(process.stdout, "over")
    process.terminate()
    process.wait()
    assert [line.rsplit(" ", 1)[0] if "up" in line else line for line in lines] == [
        "a up",
        "a ended",
        "a up",
        "a ended",
        "over",
    ]


def draining(name, go):
    """A child that says each SIGTERM it gets and ends after the first, a moment after there is a file `go`."""
    return (
        '"import os, signal, time\\n'
        f"signal.signal(signal.SIGTERM, lambda *_: print('{name} asked', flush=True))\\n"
        f"print('{name} up', flush=True)\\n"
        "signal.pause()\\n"
        f"while not os.path.exists('{go}'): time.sleep(0.01)\\n"
        'time.sleep(0.5)"'
    )


def test_a_child_that_drains_is_asked_only_once(start, tmp_path):
    """A second SIGTERM ends a worker the hard way: neither another change of the models nor Ctrl-C may send it."""
    body = f"""
    class Stopping(Supervisor):
        def _stop(self):
            open("{tmp_path}/go", "w").close()
            super()._stop()
    seen = []
    def tick(supervisor):
        seen.append(1)
        if 4 <= len(seen) <= 6: supervisor.restart("a")
        if len(seen) == 7: print("restarted thrice", flush=True)
    sys.exit(Stopping([child('a', {draining("a", f"{tmp_path}/go")})], tick=tick).run())
    """
    process = start(body)
    lines = read_until(process.stdout, "restarted thrice")
    process.terminate()
    lines += [line.strip() for line in process.stdout]
    assert lines.count("a asked") == 1
    assert process.wait() == 0


def test_a_child_that_never_ends_for_its_restart_is_killed_and_started_again(start):
    deaf = (
        '"import signal, time\\n'
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
        "print('a up', flush=True)\\n"
        'time.sleep(600)"'
    )
    body = f"""
    import operation.serve.supervisor
    operation.serve.supervisor.PATIENCE = 0.2
    seen = []
    def tick(supervisor):
        seen.append(1)
        if len(seen) == 4: supervisor.restart("a")
    sys.exit(Supervisor([child('a', {deaf}, 0.2)], tick=tick).run())
    """
    process = start(body, stderr=subprocess.PIPE)
    assert read_until(process.stdout, "a up") == ["a up"]
    assert read_until(process.stdout, "a up") == ["a up"]
    process.terminate()
    assert "a did not end within 0.4 s: killed" in process.communicate()[1]


BEATING = (
    "import os, pathlib, time\\n"
    "print('a up', os.getpid(), flush=True)\\n"
    "while True:\\n    pathlib.Path(os.environ['SLUICE_HEARTBEAT']).touch(); time.sleep(0.05)\\n"
)


def test_a_stopped_child_is_replaced_and_said(start, tmp_path):
    spec = f"ChildSpec('a', [sys.executable, '-u', '-c', \"{BEATING}\"], 60, 3.0, Path('{tmp_path}/a'))"
    process = start(f"from pathlib import Path; sys.exit(Supervisor([{spec}]).run())", stderr=subprocess.PIPE)
    first = pid_of(read_until(process.stdout, "a up"), "a")
    while not (tmp_path / "a").exists():
        time.sleep(0.01)
    os.kill(first, signal.SIGSTOP)
    second = pid_of(read_until(process.stdout, "a up"), "a")
    assert second != first
    process.terminate()
    said = process.communicate()[1]
    assert "a gave no sign of life for 3 s: killed" in said
    assert process.returncode == 0
    assert gone(first)
    assert gone(second)
    assert not (tmp_path / "a").exists()


def test_where_the_kernel_tells_nobody_a_process_beside_ends_the_children(start):
    body = f"""
    import operation.serve.processes
    operation.serve.processes.HAS_DEATH_SIGNAL = False
    sys.exit(Supervisor([child('a', {polite("a")})]).run())
    """
    process = start(body, stderr=subprocess.PIPE)
    pid = pid_of(read_until(process.stdout, "a up"), "a")
    assert alive(pid)
    process.kill()
    process.wait()
    assert gone(pid)
    assert "a process beside this one" in process.stderr.read()


def test_the_process_beside_ends_with_the_supervisor(start):
    body = f"""
    import operation.serve.processes
    operation.serve.processes.HAS_DEATH_SIGNAL = False
    supervisor = Supervisor([child('a', {polite("a")})], tick=lambda s: print("leash up", s._leash.pid, flush=True))
    sys.exit(supervisor.run())
    """
    process = start(body, stderr=subprocess.PIPE)
    beside = pid_of(read_until(process.stdout, "a up", "leash up"), "leash")
    process.terminate()
    assert "a ended" in process.communicate()[0]
    assert process.returncode == 0
    assert not alive(beside)


def test_the_process_beside_forgets_a_child_that_has_ended(start):
    """Its process group's number may be another's by then."""
    body = """
    import operation.serve.processes
    operation.serve.processes.HAS_DEATH_SIGNAL = False
    Supervisor._tell_leash = lambda self, line: print("leash", line, flush=True)
    sys.exit(Supervisor([child('a', "import os; print('a up', os.getpid(), flush=True)")]).run())
    """
    process = start(body, stderr=subprocess.PIPE)
    pid = pid_of(read_until(process.stdout, "a up"), "a")
    read_until(process.stdout, f"leash -{pid}")
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        said = f"+{bystander.pid}\n-{bystander.pid}\n"
        subprocess.run([sys.executable, leash.__file__], input=said, text=True, check=True)
        assert bystander.poll() is None
    finally:
        bystander.kill()
    assert bystander.wait() == -signal.SIGKILL


def replaceable(tmp_path, life=""):
    """A child that says how it is asked to end, and shows life unless `life` is another statement."""
    code = textwrap.dedent(
        f"""
        import os, pathlib, signal, sys
        def told(number, _):
            os.write(1, b'a %d told %d' % (os.getpid(), number) + bytes([10])); sys.exit(0)
        signal.signal(signal.SIGTERM, told)
        signal.signal(signal.SIGHUP, told)
        os.write(1, b'a up %d' % os.getpid() + bytes([10]))
        beat = lambda: pathlib.Path(os.environ['SLUICE_HEARTBEAT']).touch()
        {life or "beat()"}
        while True: signal.pause()
        """
    )
    spec = f"ChildSpec('a', [sys.executable, '-c', {code!r}], 60, 0, Path('{tmp_path}/a'), farewell=5.0)"
    return f"from pathlib import Path; sys.exit(Supervisor([{spec}], hangup=lambda s: s.roll(['a'])).run())"


def test_hangup_replaces_a_child_whose_successor_shows_life_before_it_is_told(start, tmp_path):
    process = start(replaceable(tmp_path), stderr=subprocess.PIPE)
    old = pid_of(read_until(process.stdout, "a up"), "a")
    while not (tmp_path / "a").exists():
        time.sleep(0.01)
    for _ in range(2):  # the second time its heartbeat is the other file
        process.send_signal(signal.SIGHUP)
        new = pid_of(read_until(process.stdout, "a up"), "a")
        assert read_until(process.stdout, "told")[-1] == f"a {old} told {int(signal.SIGHUP)}"
        assert alive(new)
        assert gone(old)
        old = new
    process.terminate()
    assert process.wait() == 0
    assert gone(old)
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_is_closed_ends_everything(start, tmp_path):
    """Its SIGHUP is no wish for a rolling restart."""
    controller, terminal = pty.openpty()

    def own_terminal():
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(replaceable(tmp_path), stdin=terminal, stderr=subprocess.PIPE, preexec_fn=own_terminal)
    os.close(terminal)
    pid = pid_of(read_until(process.stdout, "a up"), "a")
    os.close(controller)
    assert read_until(process.stdout, "told")[-1] == f"a {pid} told {int(signal.SIGTERM)}"
    assert process.wait() == 0


@pytest.mark.parametrize("instead", ["sys.exit(1)", "None"])
def test_a_successor_that_does_not_come_up_changes_nothing(start, tmp_path, instead):
    once = f"beat() if 'SLUICE_REPLACES' not in os.environ else {instead}"
    hasty = "import operation.serve.supervisor as module; module.START_SECONDS = 1.0; "
    process = start(hasty + replaceable(tmp_path, once), stderr=subprocess.PIPE)
    first = pid_of(read_until(process.stdout, "a up"), "a")
    while not (tmp_path / "a").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    read_until(process.stdout, "a up")
    read_until(process.stderr, "all stays as it is")
    assert alive(first)
    process.terminate()
    assert process.wait() == 0
