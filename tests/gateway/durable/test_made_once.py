"""Files and batches under an idempotency key: made with the answer that names them, so once whatever dies between."""

from __future__ import annotations

import asyncio

import pytest

from base import storage
from gateway.batches import files
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch
from gateway.durable import answers
from gateway.errors.refusal import Refusal
from tests.gateway.apis.files.test_files import TYPE, form, kept
from tests.gateway.batches.conftest import CHAT, Desk, chat_line, jsonl, place
from tests.gateway.durable.test_lost_gateways import Gate, end_leases, lose, stop_before
from tests.gateway.world import in_database, settled

__all__ = ["place"]

pytestmark = pytest.mark.django_db(transaction=True)

POINTS = ["it is stored", "its readers have its end"]


def made_of(model):
    return in_database(lambda: list(model.objects.unscoped()))


def content_of(file):
    with storage.read(file) as opened:
        return opened.read()


async def batch_body(bench):
    file = await in_database(Desk(bench.world).store, jsonl([chat_line(1)]))
    return {"input_file_id": f"file-{file.id.hex}", "endpoint": CHAT, "completion_window": "24h"}


def upload(bench, content=b"{}\n", *, key="k1", **fields):
    return bench.ask(form(content, **fields), path="/v1/files", key=key, content_type=TYPE["content-type"])


async def lost_at(bench, monkeypatch, point, ask):
    """What the gateway answers after it was lost at that point of `ask`, and what the lost one answers in the end."""
    gate = Gate()
    stop_before(bench, monkeypatch, point, gate)
    first = ask()
    reached = asyncio.ensure_future(gate.reached.wait())
    await asyncio.wait({reached, first.task}, return_when=asyncio.FIRST_COMPLETED)
    assert reached.done(), first.answer
    lose(bench.runtime)
    await in_database(end_leases)
    answer = await ask().finished()
    gate.open()
    await settled(bench.runtime)
    return answer, await first.finished()


@pytest.mark.parametrize("point", POINTS)
async def test_a_batch_is_made_once(gateway, place, monkeypatch, point):
    async with gateway() as bench:
        body = await batch_body(bench)
        answer, lost = await lost_at(bench, monkeypatch, point, lambda: bench.ask(body, path="/v1/batches"))
        assert answer.status == 200, answer.body
        assert (lost.status == 200 and lost.body == answer.body) or lost.json()["error"]["code"] == "answer_lost"
        [batch] = await made_of(Batch)
        assert answer.json()["id"] == f"batch_{batch.id.hex}"
        assert (await bench.ask(body, path="/v1/batches").finished()).body == answer.body
        shown = bench.ask(None, path=f"/v1/batches/batch_{batch.id.hex}/cancel", key=None)
        shown.feed(b"", more=False)
        assert (await shown.finished()).json()["status"] == "cancelling"


async def test_a_batch_that_is_refused_leaves_its_key_free(gateway, place, settings):
    async with gateway() as bench:
        body = await batch_body(bench)
        settings.SLUICE_MOST_BATCHES = 0
        refused = await bench.ask(body, path="/v1/batches").finished()
        assert (refused.status, refused.json()["error"]["code"]) == (429, "too_many_batches")
        settings.SLUICE_MOST_BATCHES = 1
        assert (await bench.ask(body, path="/v1/batches").finished()).status == 200
        assert len(await made_of(Batch)) == 1


@pytest.mark.parametrize("point", POINTS)
async def test_a_file_is_shown_once(gateway, place, monkeypatch, point):
    async with gateway() as bench:
        answer, _ = await lost_at(bench, monkeypatch, point, lambda: upload(bench))
        assert answer.status == 200, answer.body
        ready = [file for file in await made_of(StoredFile) if file.state == StoredFile.State.READY]
        assert [f"file-{file.id.hex}" for file in ready] == [answer.json()["id"]]
        assert await asyncio.to_thread(content_of, ready[0]) == b"{}\n"


async def test_an_upload_whose_like_takes_the_last_room_meanwhile_gets_its_file(gateway, place, monkeypatch):
    known = []

    def last_room_is_taken(*_):
        known.append("by the same form")
        raise Refusal(403, "file_quota_exceeded", "full")

    async with gateway() as bench:
        first = await upload(bench).finished()
        monkeypatch.setattr(answers, "is_known", lambda _: bool(known))
        monkeypatch.setattr(files, "require_room", last_room_is_taken)
        again = await upload(bench).finished()
        assert (again.status, again.body, len(known)) == (200, first.body, 1)


async def test_an_upload_that_is_sent_again_gets_the_first_file(gateway, place, settings):
    settings.SLUICE_MOST_FILES = 1
    async with gateway() as bench:
        both = await asyncio.gather(*(upload(bench).finished() for _ in range(2)))
        again = await upload(bench).finished()
        assert {answer.status for answer in (*both, again)} == {200}
        assert len({answer.body for answer in (*both, again)}) == 1
        assert again.headers["idempotency-replayed"] == "true"
        for other in (upload(bench, b"[]\n"), upload(bench, filename="b.jsonl"), upload(bench, expires_after="1")):
            answer = await other.finished()
            assert answer.status in {400, 422}, answer.body
        full = await upload(bench, key="k2").finished()
        assert (full.status, full.json()["error"]["code"]) == (403, "file_quota_exceeded")
        settings.SLUICE_MOST_FILES = 2
        assert (await upload(bench, key="k2").finished()).json()["id"] != again.json()["id"]
        await settled(bench.runtime)
        assert len(await made_of(StoredFile)) == len(kept(place)) == 2
