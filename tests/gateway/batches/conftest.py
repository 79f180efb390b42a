"""A gateway over the test database with a fake engine, a real server, and what runs batches."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace

import pytest

from base import storage
from base.database.threads import DatabaseThreads
from billing.models import UsageRecord
from gateway.apis.batches.running import Lines
from gateway.apis.endpoints import POSTS
from gateway.batches.driver import Driver
from gateway.batches.files import StoredFile, begin_file, finish_file
from gateway.batches.intake import take_in
from gateway.batches.models import Batch, BatchLine
from gateway.batches.results import finish
from gateway.batches.services import add_batch, new_batch
from gateway.runtime.requests import Stage
from tests.gateway.apis.server import sdk, serving, with_runtime
from tests.gateway.world import in_database, make_world, opened, settled

CHAT = "/v1/chat/completions"


def chat_line(number, **more):
    """One request; its answer, from an engine that echoes, has its number."""
    body = {"model": "fake", "messages": [{"role": "user", "content": f"say {number}"}], **more.pop("body", {})}
    return {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body, **more}


def jsonl(lines):
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class Desk:
    """Makes batches and does the jobs' work; everything is synchronous, for `in_database` and tests without a loop."""

    def __init__(self, world) -> None:
        self.world = world

    def store(self, content, purpose="batch"):
        """Store a file as an upload does."""
        draft = storage.drafts() / "upload"
        draft.write_bytes(content)
        ids = {"tenant": self.world.tenant.id, "project": self.world.project.id}
        file = begin_file(**ids, purpose=purpose, filename="in.jsonl", size=len(content), seconds=None)
        storage.put(file, draft)
        assert finish_file(file)
        return file

    def begin(self, lines, **fields):
        """Make a batch of a file with these lines, or this content."""
        content = lines if isinstance(lines, bytes) else jsonl(lines)
        ids = {"tenant": self.world.tenant.id, "project": self.world.project.id, "api_key": self.world.key_id}
        batch = new_batch(**ids, input_file=self.store(content).id, **{"endpoint": CHAT, **fields})
        add_batch(batch)
        return batch

    def now(self, batch):
        return Batch.objects.unscoped().get(id=batch.id)

    def read(self, identifier):
        """The lines of a result file."""
        if identifier is None:
            return []
        with storage.read(StoredFile.objects.unscoped().get(id=identifier)) as opened_file:
            return [json.loads(line) for line in opened_file.read().splitlines()]

    def results(self, batch):
        """What stands in the output and the error file."""
        ended = self.now(batch)
        return self.read(ended.output_file), self.read(ended.error_file)

    def records(self):
        """How many requests were charged."""
        return UsageRecord.objects.filter(charge__gt=0).count()


def exhaust(work):
    """Do what is due of a job."""
    while work():
        pass


@pytest.fixture
def place(settings, tmp_path):
    """A home of its own for files."""
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    return tmp_path


@pytest.fixture
def desk(transactional_db, place):
    """A tenant with a key, without a gateway."""
    return Desk(make_world())


@asynccontextmanager
async def stage(place, settings, *, runs_lines=False, **options):
    """A world, its runtime and server, and a desk."""
    world = await in_database(make_world, **{"echo": True, **options})
    async with (
        opened(place, runs_lines=runs_lines) as runtime,
        serving(with_runtime(runtime)) as address,
    ):

        def client():
            return sdk(world.secret, address)

        yield SimpleNamespace(world=world, runtime=runtime, desk=Desk(world), client=client)
        await settled(runtime)


@contextmanager
def driving(runtime, slots=4):
    """Yield a driver of the gateway's lines that is stepped by hand."""
    with closing(DatabaseThreads(1)) as threads:
        driver = Driver(
            Lines(runtime, POSTS).ask, threads, slots, rests=lambda: runtime.requests.stage is Stage.DRAINING
        )
        with closing(driver):
            yield driver


async def run_jobs(runtime, driver=None):
    """Do all that is due: files are read, lines run, files are written."""
    await in_database(exhaust, take_in)
    with driving(runtime) if driver is None else nullcontext(driver) as it:
        while await it.step():
            pass
    await in_database(exhaust, finish)


def make_due():
    """Let every line that waits for another try be due now."""
    long_ago = timedelta(hours=1)
    for line in BatchLine.objects.all():
        lapses = line.claimed_until and line.claimed_until - long_ago
        BatchLine.objects.filter(id=line.id).update(due_at=line.due_at - long_ago, claimed_until=lapses)
