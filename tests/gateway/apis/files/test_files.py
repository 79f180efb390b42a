"""Files: uploaded in pieces, kept apart, bounded, read in parts, deleted, expired."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone
from structlog.testing import capture_logs

from base import storage
from base.ids import uuid7
from gateway.batches import files
from gateway.batches.files import StoredFile, taken
from gateway.batches.models import Batch
from tests.gateway.apis.client import Exchange, ask, assert_error
from tests.gateway.apis.files.conftest import NEIGHBOUR_KEY, OTHER_KEY
from tests.gateway.world import in_database

pytestmark = pytest.mark.django_db(transaction=True)

BOUNDARY = "xyz"
_ACME, _PROJECT = UUID(int=1), UUID(int=2)
TYPE = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name, value, *, filename=None, more=""):
    shown = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{shown}\r\n{more}\r\n'
    return head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def form(content=b"{}\n", *, filename="in.jsonl", purpose="batch", **fields):
    texts = b"".join(part(name.replace("_", "[", 1) + "]", value) for name, value in fields.items())
    return part("purpose", purpose) + texts + part("file", content, filename=filename) + END


async def upload(app, content=b"{}\n", *, key=None, **fields):
    options = {"key": key} if key else {}
    return await ask(app, "/v1/files", form(content, **fields), headers=TYPE, **options)


def kept(tmp_path):
    """Every file on the disk, drafts included."""
    return [path for name in ("files", "drafts") for path in (tmp_path / name).rglob("*") if path.is_file()]


async def removed(now):
    return await in_database(files.removal(lambda: now).turn)


async def test_a_file_is_what_was_sent_and_can_be_read_in_parts(app, tmp_path):
    content = os.urandom(1_500_000)
    exchange = Exchange(app, "POST", "/v1/files", body=None, headers=TYPE)
    whole = form(content, filename="näme.jsonl")
    for begin in range(0, len(whole), 65_536):
        exchange.feed(whole[begin : begin + 65_536], more=begin + 65_536 < len(whole))
    answer = await exchange.finished()
    assert answer.status == 200, answer.body
    made = answer.json()
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(content), "näme.jsonl")
    assert made["id"].startswith("file-")
    assert made["expires_at"] - made["created_at"] == 30 * 86_400
    assert (await ask(app, f"/v1/files/{made['id']}")).json() == made
    place = f"/v1/files/{made['id']}/content"
    read = await ask(app, place)
    assert read.body == content
    assert read.headers["content-disposition"] == "attachment; filename*=UTF-8''n%C3%A4me.jsonl"
    piece = await ask(app, place, headers={"range": "bytes=10-19"})
    assert (piece.status, piece.body) == (206, content[10:20])
    assert piece.headers["content-range"] == f"bytes 10-19/{len(content)}"
    assert (await ask(app, place, headers={"range": "bytes=-7"})).body == content[-7:]
    assert_error(await ask(app, place, headers={"range": "bytes=1500000-"}), 416, "range_not_satisfiable")
    [path] = kept(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (part("purpose", "batch") + part("file", "{}", filename="f")[:-2], 400, "invalid_form"),
        (part("purpose", "batch") + END, 400, "missing_required_parameter"),
        (part("file", "{}", filename="f") + END, 400, "missing_required_parameter"),
        (form(purpose="fine-tune"), 400, "invalid_value"),
        (form(colour="red"), 400, "unknown_parameter"),
        (form(expires_after_="3600"), 400, "unknown_parameter"),
        (part("purpose", "batch") + part("file", "{}") + END, 400, "invalid_value"),
        (part("purpose", "batch") * 2 + part("file", "{}", filename="f") + END, 400, "invalid_value"),
        (part("purpose", "batch") + part("file", "{}", filename="f") * 2 + END, 400, "invalid_value"),
        (part("purpose", b"\xff") + part("file", "{}", filename="f") + END, 400, "invalid_value"),
        (part("purpose", "b" * 5000) + END, 400, "invalid_value"),
        (part("a", "") * 80 + END, 400, "invalid_value"),
        (b"".join(part(f"a{number}", "") for number in range(80)) + END, 400, "invalid_form"),
        (part("purpose", "batch") + part("file", "{}", filename="a\x00b") + END, 400, "invalid_value"),
        (
            part("file", b"\x1f\x8b", filename="f", more="content-encoding: gzip\r\n") + END,
            415,
            "unsupported_content_encoding",
        ),
        (b"not a form at all", 400, "invalid_form"),
        (b"", 400, "invalid_form"),
    ],
)
async def test_what_is_no_upload_is_refused_and_leaves_nothing(app, tmp_path, body, status, code):
    answer = await ask(app, "/v1/files", body, method="POST", headers=TYPE)
    assert_error(answer, status, code)
    assert kept(tmp_path) == []
    assert await in_database(StoredFile.objects.unscoped().count) == 0


async def test_expiry_is_as_asked(app):
    fields = {"expires_after_anchor": "created_at", "expires_after_seconds": "3600"}
    content = part("purpose", "batch") + b"".join(
        part(name.replace("after_", "after[") + "]", value) for name, value in fields.items()
    )
    answer = await ask(app, "/v1/files", content + part("file", "{}", filename="f") + END, headers=TYPE)
    made = answer.json()
    assert made["expires_at"] - made["created_at"] == 3600
    lone = part("purpose", "batch") + part("expires_after[seconds]", "3600") + part("file", "{}", filename="f") + END
    assert_error(await ask(app, "/v1/files", lone, headers=TYPE), 400, "invalid_value", param="expires_after")


async def test_other_bodies_are_refused(app):
    assert_error(await ask(app, "/v1/files", {"purpose": "batch"}), 415, "unsupported_content_type")
    zipped = {**TYPE, "content-encoding": "gzip"}
    assert_error(await ask(app, "/v1/files", form(), headers=zipped), 415, "unsupported_content_encoding")


async def test_a_file_is_its_projects(app):
    made = (await upload(app)).json()["id"]
    for key in (OTHER_KEY, NEIGHBOUR_KEY):
        for path in (f"/v1/files/{made}", f"/v1/files/{made}/content"):
            assert_error(await ask(app, path, key=key), 404, "file_not_found")
        assert_error(await ask(app, f"/v1/files/{made}", method="DELETE", key=key), 404, "file_not_found")
        assert (await ask(app, "/v1/files", key=key)).json()["data"] == []
    assert_error(await ask(app, "/v1/files/file-nonsense"), 404, "file_not_found")


async def test_lists_go_page_by_page(app):
    made = [(await upload(app, filename=str(number))).json()["id"] for number in range(5)]
    first = (await ask(app, "/v1/files?limit=2")).json()
    assert [one["id"] for one in first["data"]] == [made[4], made[3]]
    assert first["has_more"]
    rest = (await ask(app, f"/v1/files?after={first['last_id']}&limit=3")).json()
    assert [one["id"] for one in rest["data"]] == made[2::-1]
    assert not rest["has_more"]
    rising = (await ask(app, f"/v1/files?order=asc&after={made[2]}")).json()
    assert [one["id"] for one in rising["data"]] == made[3:]
    assert (await ask(app, "/v1/files?purpose=batch_output")).json()["data"] == []
    assert_error(await ask(app, "/v1/files?limit=0"), 400, "invalid_value", param="limit")
    assert_error(await ask(app, "/v1/files?colour=red"), 400, "unknown_parameter", param="colour")
    assert_error(await ask(app, "/v1/files?after=1"), 400, "invalid_value", param="after")
    assert_error(await ask(app, "/v1/files?purpose=%00"), 400, "invalid_value", param="query")


async def test_a_file_that_is_too_large_is_refused_before_it_is_kept(app, settings, tmp_path):
    settings.SLUICE_MAX_FILE_BYTES = 100_000
    assert_error(await upload(app, b"x" * 100_001), 413, "file_too_large")
    announced = {**TYPE, "content-length": "99999999"}
    exchange = Exchange(app, "POST", "/v1/files", body=None, headers=announced)  # of which nothing is read
    assert_error(await exchange.finished(), 413, "file_too_large")
    assert (await upload(app, b"x" * 100_000)).status == 200
    assert len(kept(tmp_path)) == 1


async def test_a_tenant_has_so_many_files_and_bytes_at_most(app, settings, tmp_path):
    settings.SLUICE_MOST_FILE_BYTES = 1000
    assert (await upload(app, b"x" * 600)).status == 200
    assert_error(await upload(app, b"x" * 401), 403, "file_quota_exceeded")
    assert (await upload(app, b"x" * 401, key=OTHER_KEY)).status == 200
    settings.SLUICE_MOST_FILES = 2
    assert (await upload(app)).status == 200
    assert_error(await upload(app), 403, "file_quota_exceeded")
    assert len(kept(tmp_path)) == 3


async def test_uploads_at_the_same_time_cant_exceed_the_quota(app, settings, tmp_path):
    settings.SLUICE_MOST_FILES = 2
    answers = await asyncio.gather(*(upload(app) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 200, 403, 403]
    assert len(kept(tmp_path)) == 2


async def test_a_client_that_leaves_leaves_nothing(app, tmp_path):
    exchange = Exchange(app, "POST", "/v1/files", body=None, headers=TYPE)
    exchange.feed(form(b"x" * 700_000)[:600_000])
    exchange.leave()
    await exchange.finished()
    assert kept(tmp_path) == []


async def test_so_many_uploads_of_a_tenant_are_on_their_way_at_most(app):
    waiting = [Exchange(app, "POST", "/v1/files", body=None, headers=TYPE) for _ in range(5)]
    done, _ = await asyncio.wait([exchange.task for exchange in waiting], return_when=asyncio.FIRST_COMPLETED)
    [refused] = [exchange for exchange in waiting if exchange.task in done]
    assert_error(refused.answer, 429, "too_many_uploads")
    for exchange in waiting:
        exchange.leave()
        await exchange.finished()


async def test_a_deleted_file_is_gone_at_once_and_its_bytes_with_the_next_sweep(app, tmp_path):
    made = (await upload(app)).json()["id"]
    answer = await ask(app, f"/v1/files/{made}", method="DELETE")
    assert answer.json() == {"id": made, "object": "file", "deleted": True}
    assert_error(await ask(app, f"/v1/files/{made}/content"), 404, "file_not_found")
    assert_error(await ask(app, f"/v1/files/{made}", method="DELETE"), 404, "file_not_found")
    assert await in_database(taken, (await in_database(StoredFile.objects.unscoped().get)).tenant_id) == (0, 0)
    assert len(kept(tmp_path)) == 1
    assert await removed(timezone.now()) == 1
    assert kept(tmp_path) == []
    assert await in_database(StoredFile.objects.unscoped().count) == 0


async def test_a_file_that_a_batch_reads_stays_until_that_ends(app, tmp_path):
    made = (await upload(app)).json()["id"]
    row = await in_database(StoredFile.objects.unscoped().get)

    def make_batch():
        return Batch.objects.create(
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            api_key=uuid7(),
            endpoint="/v1/embeddings",
            input_file=row.id,
            expires_at=timezone.now() + timedelta(hours=24),
        )

    batch = await in_database(make_batch)
    await ask(app, f"/v1/files/{made}", method="DELETE")
    assert await removed(timezone.now()) == 0
    assert len(kept(tmp_path)) == 1
    await in_database(Batch.objects.unscoped().filter(id=batch.id).update, ended_at=timezone.now())
    assert await removed(timezone.now()) == 1
    assert kept(tmp_path) == []


async def test_expired_files_go(app, tmp_path):
    await upload(app)
    now = timezone.now()
    assert await in_database(files.hide_expired, now + timedelta(days=29), 10) == 0
    assert await in_database(files.hide_expired, now + timedelta(days=31), 10) == 1
    assert await removed(now) == 1
    assert kept(tmp_path) == []


async def test_what_a_killed_process_left_goes(app, tmp_path):
    """Killed between the row and its bytes, or between the bytes and the note that they are there."""
    for draft in (b"", b"bytes"):
        row = await in_database(
            lambda: files.begin_file(
                tenant=_ACME, project=_PROJECT, purpose="batch", filename="f", size=5, seconds=None
            )
        )
        if draft:
            path = storage.drafts() / "x"
            path.write_bytes(draft)
            await in_database(storage.put, row, path)
    now = timezone.now()
    assert (await ask(app, "/v1/files")).json()["data"] == []
    assert await removed(now) == 0
    assert await removed(now + timedelta(hours=2)) == 2
    assert kept(tmp_path) == []
    assert await in_database(StoredFile.objects.unscoped().count) == 0


async def test_a_file_that_cant_be_removed_delays_no_other(app, tmp_path, monkeypatch):
    for _ in range(3):
        await ask(app, f"/v1/files/{(await upload(app)).json()['id']}", method="DELETE")
    first = await in_database(StoredFile.objects.unscoped().earliest, "id")
    delete = type(storage.storage()).delete

    def refuse(self, name):
        if name == first.key:
            raise PermissionError("not yours")
        delete(self, name)

    with monkeypatch.context() as broken:
        broken.setattr(type(storage.storage()), "delete", refuse)
        with pytest.raises(ExceptionGroup) as raised:
            await removed(timezone.now())
    assert raised.value.exceptions[0].__notes__ == [f"while working on {first.id}"]
    assert [path.name for path in kept(tmp_path)] == [first.id.hex]
    assert [file.id for file in await in_database(lambda: list(StoredFile.objects.unscoped()))] == [first.id]
    assert await removed(timezone.now()) == 1
    assert kept(tmp_path) == []


async def test_an_upload_that_was_given_up_stores_nothing(app, tmp_path, monkeypatch):
    put = storage.put

    def late(file, draft):
        files.removal(lambda: timezone.now() + timedelta(hours=2)).turn()
        connection.close()
        put(file, draft)

    monkeypatch.setattr(storage, "put", late)
    assert_error(await upload(app), 503, "file_not_stored")
    assert kept(tmp_path) == []


async def test_lost_bytes_are_said(app, tmp_path):
    made = (await upload(app)).json()["id"]
    [path] = kept(tmp_path)
    path.unlink()
    assert_error(await ask(app, f"/v1/files/{made}/content"), 404, "file_content_missing")


async def test_old_drafts_go(world):
    for name, age in (("old", storage.FORGOTTEN_SECONDS + 60), ("new", 60)):
        path = storage.drafts() / name
        path.touch()
        then = timezone.now().timestamp() - age
        os.utime(path, (then, then))
    storage.sweep_drafts()
    assert [path.name for path in storage.drafts().iterdir()] == ["new"]


async def test_a_folder_among_the_drafts_delays_no_draft(world):
    drafts = storage.drafts()
    (drafts / "between").mkdir()
    for path in (drafts / "a", drafts / "between", drafts / "z"):
        path.is_dir() or path.touch()
        os.utime(path, (1, 1))
    with capture_logs() as logs:
        storage.sweep_drafts()
    assert [path.name for path in drafts.iterdir()] == ["between"]
    assert [(line["event"], line["name"]) for line in logs] == [("draft_not_removed", "between")]
