"""The loop of `manage.py jobs`, and Celery's worker and beat: killed, cut off, and nothing lost or done twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.services.redis import RedisServer
from tests.stack.conftest import PATIENCE, ROOT, database_of_this_run

pytestmark = [pytest.mark.stack, pytest.mark.slow]

LOOP = {"jobs": ["manage.py", "jobs"]}
CELERY = {
    "worker": ["-m", "celery", "-A", "gateway", "--quiet", "worker", "--pool", "threads"],
    "beat": ["-m", "celery", "-A", "gateway", "--quiet", "beat", "--pidfile="],
}


@dataclass
class Home:
    """A migrated home, in which the `programs` do the periodic work."""

    folder: Path
    environment: dict[str, str]
    programs: dict[str, list[str]]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def heartbeat(self, name):
        return self.folder / f"{name}.heartbeat"

    def all_live(self):
        return all(self.heartbeat(name).exists() for name in self.programs)

    def run(self, *command):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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
        """How many requests the rollups count, and how many events wait."""
        ask = (
            "from billing.models import *; from django.db.models import Sum; "
            "print(UsageRollup.objects.aggregate(n=Sum('requests'))['n'] or 0, OutboxEvent.objects.count())"
        )
        return tuple(map(int, self.run("manage.py", "shell", "-v0", "-c", ask).split()))

    def events(self):
        """How many events wait; asked often, so without a process of its own."""
        if url := self.environment.get("DATABASE_URL"):
            database = psycopg.connect(url)
        else:
            database = sqlite3.connect(f"file:{self.folder / 'sluice.sqlite3'}?mode=ro", uri=True)
        with closing(database):
            return database.execute("SELECT count(*) FROM billing_outboxevent").fetchone()[0]

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
    with tempfile.TemporaryDirectory(prefix="sluice-jobs-") as name, database_of_this_run(Path(name)) as database:
        folder = Path(name)
        environment = {**os.environ, "SLUICE_HOME": name, "SLUICE_ENV": "test", **database, **variables}
        environment["SLUICE_EMAIL_URL"] = "consolemail://"
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        home = Home(folder, environment, programs)
        home.run("manage.py", "migrate", "-v0")
        try:
            yield home
        finally:
            home.kill()


@pytest.fixture(scope="module")
def redis():
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture(params=["loop", "celery"])
def home(request):
    if request.param == "loop":
        with home_with({"REDIS_URL": ""}, LOOP) as made:
            yield made
    else:
        with home_with({"REDIS_URL": request.getfixturevalue("redis").url}, CELERY) as made:
            yield made


def test_it_does_its_work_and_ends_when_it_is_told(home):
    home.run("-m", "tests.stack.programs.periodic", "100")
    home.start()
    home.until(lambda: "the only text of this mail" in home.said())
    home.until(lambda: home.rollups() == (100, 0))
    home.until(home.all_live)
    assert set(home.end()) == {0}, home.said()
    assert "Traceback" not in home.said()


def test_killed_in_the_middle_it_loses_nothing_and_does_nothing_twice(home):
    home.run("-m", "tests.stack.programs.periodic", "1000")
    waiting = 1000
    for _ in range(3):
        home.start()
        home.until(lambda: home.events() < waiting)  # noqa: B023 - a chunk was done
        home.kill()
        done, waiting = home.rollups()
        assert done + waiting == 1000
        if not waiting:  # it did everything while nobody looked
            break
    home.start()
    home.until(lambda: home.events() == 0)
    assert home.rollups() == (1000, 0)
    home.until(lambda: "the only text of this mail" in home.said())


def test_it_goes_on_when_redis_was_away(redis):
    """Celery's worker may end then, or take nothing more and end two minutes later."""
    with home_with({"REDIS_URL": redis.url}, CELERY) as home:
        home.start()
        home.until(home.all_live)
        redis.kill()
        home.until_with_restarts(lambda: "Connection refused" in home.said())
        redis.start_again()
        home.run("-m", "tests.stack.programs.periodic", "10")
        home.until_with_restarts(lambda: home.events() == 0)
        assert home.rollups() == (10, 0)
