"""The batches page: how far, how dear, what came of it; and who may stop one or read its files."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from base import storage
from base.ids import uuid7
from control.console.urls import urlpatterns
from gateway.asgi import hints
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch

pytestmark = pytest.mark.django_db
Status = Batch.Status


@pytest.fixture
def batch_of(settings, tmp_path):
    """Makes a batch of a party."""
    settings.SLUICE_HOME = tmp_path
    options = {"location": str(tmp_path / "files")}
    settings.STORAGES = {**settings.STORAGES, "files": {**settings.STORAGES["files"], "OPTIONS": options}}

    def make(party, status=Status.IN_PROGRESS, **fields):
        batch = Batch(
            tenant=party.tenant,
            project=party.project,
            api_key=party.key.id,
            endpoint="/v1/chat/completions",
            input_file=uuid7(),
            expires_at=timezone.now() + timedelta(days=1),
            status=status,
            **fields,
        )
        batch.save(force_insert=True)
        return batch

    return make


def test_no_page_has_an_address_that_is_taken_for_a_mistaken_one_of_the_api():
    """Such a request is answered before Django sees it."""
    assert [str(page.pattern) for page in urlpatterns if re.match(hints.near, str(page.pattern))] == []


def file_of(party, content, filename="batch_output.jsonl"):
    file = StoredFile(
        tenant=party.tenant,
        project=party.project,
        purpose="batch_output",
        filename=filename,
        bytes=len(content),
        state=StoredFile.State.READY,
        expires_at=timezone.now() + timedelta(days=1),
    )
    file.save(force_insert=True)
    draft = storage.drafts() / file.id.hex
    draft.write_bytes(content)
    storage.put(file, draft)
    return file


def text_of(response):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.content.decode()))


def test_without_batches_it_says_how_to_make_one(acme, people):
    text = text_of(acme.client().get("/batches/"))
    assert "No batches yet" in text
    assert "curl http://testserver/v1/batches" in text
    assert "curl" not in text_of(people("billing").get("/batches/"))


def test_it_shows_how_far_a_batch_is_and_what_it_cost(acme, batch_of):
    batch = batch_of(acme, total=1200, completed=300, failed=2, charge=2_500_000, model="small")
    text = text_of(acme.client().get("/batches/"))
    assert f"small {batch} /v1/chat/completions {acme.project.name} · {acme.key.name}" in text
    assert " in progress " in text
    assert "302 of 1,200, 2 failed 2.5 credits" in text
    assert "Cancel" in text


def test_a_failed_batch_says_which_lines_are_wrong(acme, batch_of):
    errors = [{"code": "c", "line": number, "message": f"wrong <{number}>", "param": None} for number in range(1, 13)]
    batch_of(acme, Status.FAILED, errors=errors)
    page = acme.client().get("/batches/").content.decode()
    assert "12 wrong lines" in page
    assert "Line 1: wrong &lt;1&gt;" in page
    assert "wrong &lt;11&gt;" not in page
    assert "/cancel/" not in page


def test_pages_go_on_where_the_last_one_ended(acme, batch_of, monkeypatch):
    monkeypatch.setattr("control.console.batches.SHOWN", 2)
    made = [batch_of(acme, model=f"m{number}") for number in range(3)]
    client = acme.client()
    first = client.get("/batches/").content.decode()
    [older] = re.findall(r'href="(\?before=[^"]+)"', first)
    second = client.get(f"/batches/{older}").content.decode()
    assert [str(one) in first for one in made] == [False, True, True]
    assert [str(one) in second for one in made] == [True, False, False]
    assert client.get("/batches/?before=x").status_code == 404


def test_cancelling_asks_first_and_sends_no_more(acme, batch_of):
    batch = batch_of(acme, total=3, completed=1)
    client = acme.client()
    path = f"/batches/{batch.id}/cancel/"
    assert "1 of 3 requests have ended" in text_of(client.get(path))
    batch.refresh_from_db()
    assert batch.status == Status.IN_PROGRESS
    assert "No more requests of the batch are sent" in text_of(client.post(path, follow=True))
    batch.refresh_from_db()
    assert batch.status == Status.CANCELLING
    assert client.get(path).status_code == 404
    Batch.objects.of(acme.tenant).update(status=Status.COMPLETED)
    assert "The batch is completed already" in text_of(client.post(path, follow=True))


def test_results_are_read_piece_by_piece(acme, batch_of, monkeypatch):
    monkeypatch.setattr("control.console.batches.READ_AT_ONCE", 4)
    output, errors = file_of(acme, b'{"a": 1}\n'), file_of(acme, b"no\n", 'it"s.jsonl')
    batch = batch_of(acme, Status.COMPLETED, total=2, completed=1, failed=1, output_file=output.id)
    Batch.objects.of(acme.tenant).update(error_file=errors.id)
    page = acme.client().get("/batches/").content.decode()
    paths = re.findall(r'href="(/batches/[^"]+/files/[^"]+/)"', page)
    assert len(paths) == 2

    response = acme.client().get(paths[0])
    assert response.headers["content-length"] == "9"
    assert response.headers["content-disposition"] == 'attachment; filename="batch_output.jsonl"'

    async def pieces():
        return [piece async for piece in response]

    assert asyncio.run(pieces()) == [b'{"a"', b": 1}", b"\n"]
    storage.remove(output)
    assert acme.client().get(paths[0]).status_code == 404
    StoredFile.objects.of(acme.tenant).update(state=StoredFile.State.DELETED)
    assert "results are gone" in text_of(acme.client().get("/batches/"))
    assert acme.client().get(paths[1]).status_code == 404
    assert acme.client().get(f"/batches/{batch.id}/files/{batch.input_file}/").status_code == 404


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("admin", True), ("member", True), ("billing", False)])
def test_who_may_not_ask_models_sees_costs_alone(acme, people, batch_of, role, may):
    file = file_of(acme, b"{}\n")
    running = batch_of(acme, total=1, charge=1_000_000)
    ended = batch_of(acme, Status.COMPLETED, total=1, completed=1, output_file=file.id)
    client = people(role)
    page = client.get("/batches/").content.decode()
    assert "1 of 1" in page
    assert ("Output" in page, "Cancel" in page) == (may, may)
    for path in (f"/batches/{running.id}/cancel/", f"/batches/{ended.id}/files/{file.id}/"):
        assert client.get(path).status_code == (200 if may else 404)
    assert client.post(f"/batches/{running.id}/cancel/").status_code == (302 if may else 404)


def test_batches_of_others_are_not_there(acme, other, batch_of):
    file = file_of(other, b"{}\n")
    running, ended = batch_of(other), batch_of(other, Status.COMPLETED, output_file=file.id)
    mine = batch_of(acme, Status.COMPLETED, output_file=file.id)
    client = acme.client()
    page = client.get("/batches/").content.decode()
    assert str(running) not in page
    assert str(ended) not in page
    for batch in (running, ended, mine):
        assert client.get(f"/batches/{batch.id}/files/{file.id}/").status_code == 404
    assert client.post(f"/batches/{running.id}/cancel/").status_code == 404
    running.refresh_from_db()
    assert running.status == Status.IN_PROGRESS


def test_a_page_of_batches_takes_as_many_queries_as_one_batch(acme, batch_of):
    def queries():
        client = acme.client()
        with CaptureQueriesContext(connection) as seen:
            client.get("/batches/")
        return len(seen)

    batch_of(acme, Status.COMPLETED, output_file=file_of(acme, b"{}").id)
    one = queries()
    for _ in range(5):
        batch_of(acme, Status.COMPLETED, output_file=file_of(acme, b"{}").id)
    assert queries() == one
