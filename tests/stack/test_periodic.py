"""Celery's worker and beat as a process, over files and over Redis: killed, cut off, and nothing lost or done twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.services.redis import RedisServer
from tests.stack.conftest import PATIENCE, ROOT, database_of_this_run

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@dataclass
class Home:
    """A migrated home, in which `manage.py jobs` runs."""

    folder: Path
    environment: dict[str, str]
    jobs: subprocess.Popen[str] | None = None

    @property
    def heartbeat(self):
        return self.folder / "heartbeat"

    def run(self, *command):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self):
        self.heartbeat.unlink(missing_ok=True)
        with (self.folder / "log").open("a") as log:
            self.jobs = subprocess.Popen(
                [sys.executable, "manage.py", "jobs"], cwd=ROOT, env=self.environment, stdout=log, stderr=log, text=True
            )

    def kill(self):
        self.jobs.kill()
        self.jobs.wait()

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
            assert self.jobs.poll() is None, self.said()
            time.sleep(0.01)


@contextmanager
def home_with(variables):
    with tempfile.TemporaryDirectory(prefix="sluice-jobs-") as name, database_of_this_run(Path(name)) as database:
        folder = Path(name)
        environment = {**os.environ, "SLUICE_HOME": name, "SLUICE_ENV": "test", **database, **variables}
        environment |= {"SLUICE_HEARTBEAT": str(folder / "heartbeat"), "SLUICE_EMAIL_URL": "consolemail://"}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        home = Home(folder, environment)
        home.run("manage.py", "migrate", "-v0")
        try:
            yield home
        finally:
            if home.jobs is not None and home.jobs.poll() is None:
                home.kill()


@pytest.fixture(scope="module")
def redis():
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture(params=["files", "redis"])
def home(request):
    variables = {"REDIS_URL": request.getfixturevalue("redis").url} if request.param == "redis" else {}
    with home_with(variables) as made:
        yield made


def test_it_does_its_work_and_ends_when_it_is_told(home):
    home.run("-m", "tests.stack.programs.periodic", "100")
    home.start()
    home.until(lambda: "the only text of this mail" in home.said())
    home.until(lambda: home.rollups() == (100, 0))
    home.until(home.heartbeat.exists)
    home.jobs.send_signal(signal.SIGTERM)
    assert home.jobs.wait(PATIENCE) == 0, home.said()
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
    with home_with({"REDIS_URL": redis.url}) as home:
        home.start()
        home.until(home.heartbeat.exists)
        redis.kill()
        home.until(lambda: "can't be sent" in home.said())
        redis.start_again()
        home.run("-m", "tests.stack.programs.periodic", "10")
        home.until(lambda: home.rollups() == (10, 0))
        home.jobs.send_signal(signal.SIGTERM)
        assert home.jobs.wait(PATIENCE) == 0, home.said()
