"""The loop of `manage.py jobs`, and Celery's worker and beat: killed, cut off, and nothing lost or done twice."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.services.redis import RedisServer
from tests.stack.stack import PATIENCE, ROOT, Inside, environment_of, migrated

pytestmark = [pytest.mark.stack, pytest.mark.slow]

EVENTS = 1000
LOOP = {"jobs": ["manage.py", "jobs"]}
CELERY = {
    "worker": ["-m", "celery", "-A", "operation", "--quiet", "worker", "--pool", "threads"],
    "beat": ["-m", "celery", "-A", "operation", "--quiet", "beat", "--pidfile="],
}


@dataclass
class Home:
    """A migrated home, in which the `programs` do the periodic work."""

    folder: Path
    environment: dict[str, str]
    programs: dict[str, list[str]]
    inside: Inside
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def heartbeat(self, name):
        return self.folder / f"{name}.heartbeat"

    def all_live(self):
        return all(self.heartbeat(name).exists() for name in self.programs)

    def start(self):
        """Start each program that isn't running."""
        for name, command in self.programs.items():
            if name in self.running and self.running[name].poll() is None:
                continue
            self.heartbeat(name).unlink(missing_ok=True)
            environment = {**self.environment, "SLUICE_HEARTBEAT": str(self.heartbeat(name))}
            with (self.folder / "log").open("a") as log:
                self.running[name] = subprocess.Popen(
                    [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log
                )

    def kill(self):
        for process in self.running.values():
            process.kill()
            process.wait()

    def end(self):
        """Tell them to end, and return their exit codes."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        return [process.wait(PATIENCE) for process in self.running.values()]

    def said(self):
        return (self.folder / "log").read_text()

    def rollups(self):
        """How many requests the rollups count, and how many events wait; read here, as often as it is looked at."""
        with closing(sqlite3.connect(self.folder / "sluice.sqlite3", timeout=PATIENCE)) as connection:
            [counted] = connection.execute("SELECT total(requests) FROM billing_usagerollup").fetchone()
            [waiting] = connection.execute("SELECT count(*) FROM billing_outboxevent").fetchone()
            return counted, waiting

    def until(self, is_so):
        """Look until it is so; bounded by the test's timeout."""
        while not is_so():
            assert all(process.poll() is None for process in self.running.values()), self.said()
            time.sleep(0.01)

    def until_with_restarts(self, is_so):
        """The same, and start again what has ended, as whoever runs Celery has to."""
        while not is_so():
            self.start()
            time.sleep(0.01)


@contextmanager
def home_with(variables, programs):
    with tempfile.TemporaryDirectory(prefix="sluice-jobs-") as name, migrated(Path(name)) as database:
        environment = environment_of(Path(name), SLUICE_EMAIL_URL="consolemail://", **database, **variables)
        home = Home(Path(name), environment, programs, Inside(environment))
        try:
            yield home
        finally:
            home.inside.close()
            home.kill()


@pytest.fixture
def redis():
    server = RedisServer.start()
    yield server
    server.stop()


def kill_in_the_middle(home, until):
    """Start it, kill it once it has done a chunk, and return how many events it left."""
    home.start()
    _, waiting = home.rollups()
    until(lambda: home.rollups()[1] < waiting or not waiting)
    home.kill()
    done, waiting = home.rollups()
    assert done + waiting == EVENTS
    return waiting


def assert_it_does_the_rest_once_and_ends_when_it_is_told(home):
    before = len(home.said())
    home.start()
    home.until(lambda: home.rollups()[1] == 0)
    assert home.rollups() == (EVENTS, 0)
    home.until(lambda: "the only text of this mail" in home.said())
    home.until(home.all_live)
    assert set(home.end()) == {0}, home.said()
    assert "Traceback" not in home.said()[before:]


def test_the_loop_killed_in_the_middle_loses_nothing_and_does_nothing_twice():
    with home_with({"REDIS_URL": ""}, LOOP) as home:
        home.inside.ask("periodic_work", EVENTS)
        if kill_in_the_middle(home, home.until):  # or it did everything while nobody looked
            kill_in_the_middle(home, home.until)
        assert_it_does_the_rest_once_and_ends_when_it_is_told(home)


def test_celery_goes_on_when_redis_was_away_and_killed_in_the_middle_too(redis):
    """Its worker may end without Redis, or take nothing more and end two minutes later."""
    with home_with({"REDIS_URL": redis.url}, CELERY) as home:
        home.start()
        home.until(home.all_live)
        redis.kill()
        home.until_with_restarts(lambda: "Connection refused" in home.said())
        redis.start_again()
        home.inside.ask("periodic_work", EVENTS)
        if kill_in_the_middle(home, home.until_with_restarts):
            kill_in_the_middle(home, home.until)
        assert_it_does_the_rest_once_and_ends_when_it_is_told(home)
