"""Celery's worker and beat as a process, over files and over Redis: killed, cut off, and nothing lost or done twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.redis import RedisServer
from tests.stack.stack import PATIENCE, ROOT, Inside, environment_of, migrated

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@dataclass
class Home:
    """A migrated home, in which `manage.py jobs` runs."""

    folder: Path
    environment: dict[str, str]
    inside: Inside
    jobs: subprocess.Popen[str] | None = None

    @property
    def heartbeat(self):
        return self.folder / "heartbeat"

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
        return tuple(self.inside.ask("rolled_up"))

    def until(self, is_so):
        """Look until it is so; bounded by the test's timeout."""
        while not is_so():
            assert self.jobs.poll() is None, self.said()
            time.sleep(0.02)


@contextmanager
def home_with(variables):
    with tempfile.TemporaryDirectory(prefix="sluice-jobs-") as name, migrated(Path(name)) as database:
        own = {"SLUICE_HEARTBEAT": f"{name}/heartbeat", "SLUICE_EMAIL_URL": "consolemail://", **database, **variables}
        environment = environment_of(Path(name), **own)
        home = Home(Path(name), environment, Inside(environment))
        try:
            yield home
        finally:
            home.inside.close()
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
    home.inside.ask("periodic_work", 100)
    home.start()
    home.until(lambda: "the only text of this mail" in home.said())
    home.until(lambda: home.rollups() == (100, 0))
    home.until(home.heartbeat.exists)
    home.jobs.send_signal(signal.SIGTERM)
    assert home.jobs.wait(PATIENCE) == 0, home.said()
    assert "Traceback" not in home.said()


def test_killed_in_the_middle_it_loses_nothing_and_does_nothing_twice(home):
    home.inside.ask("periodic_work", 1000)
    waiting = 1000
    for _ in range(2):
        home.start()
        home.until(lambda: home.rollups()[1] < waiting)  # noqa: B023 - a chunk was done
        home.kill()
        done, waiting = home.rollups()
        assert done + waiting == 1000
        if not waiting:  # it did everything while nobody looked
            break
    home.start()
    home.until(lambda: home.rollups()[1] == 0)
    assert home.rollups() == (1000, 0)
    home.until(lambda: "the only text of this mail" in home.said())


def test_it_goes_on_when_redis_was_away(redis):
    with home_with({"REDIS_URL": redis.url}) as home:
        home.start()
        home.until(home.heartbeat.exists)
        redis.kill()
        home.until(lambda: "can't be sent" in home.said())
        redis.start_again()
        home.inside.ask("periodic_work", 10)
        home.until(lambda: home.rollups() == (10, 0))
        home.jobs.send_signal(signal.SIGTERM)
        assert home.jobs.wait(PATIENCE) == 0, home.said()
