"""An export has everything of its owner, nothing of others, no secret, and fits any memory."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zipfile

import pytest
from django.test import AsyncClient, Client

from base import storage
from base.ids import uuid7
from control.belongings import export
from gateway.batches.files import StoredFile
from tenancy.models import APIKey, AuditEvent, Membership
from tests.control.belongings.conftest import EMAIL, MARK, SLUG

pytestmark = pytest.mark.django_db(transaction=True)


def opened(pieces):
    """Return the archive's files by name, each of which agrees with the manifest."""
    archive = zipfile.ZipFile(io.BytesIO(b"".join(pieces)))
    assert archive.testzip() is None
    files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["members"].keys() == files.keys()
    for name, told in manifest["members"].items():
        assert told["sha256"] == hashlib.sha256(files[name]).hexdigest()
        assert told["bytes"] == len(files[name])
        assert told.get("rows", 0) == (files[name].count(b"\n") if name.endswith(".jsonl") else 0)
    return manifest, files


def rows(files, name):
    return [json.loads(line) for line in files[f"{name}.jsonl"].splitlines()]


def test_a_tenants_export_has_all_kinds_and_its_files(marked, other):
    manifest, files = opened(export.of_tenant(marked.tenant))
    assert manifest["of"] == {"tenant": SLUG, "id": str(marked.tenant.pk)}
    empty = {name for name in files if name.endswith(".jsonl") and not files[name]}
    assert empty <= {"holds.jsonl", "budgets.jsonl"}
    [file], [adapter] = rows(files, "files"), rows(files, "adapters")
    assert files[f"files/{file['id']}"] == MARK.encode()
    assert len(files[f"adapters/{adapter['id']}.safetensors"]) > 100
    assert rows(files, "responses")[0]["body"] == {"text": MARK}
    assert {one["body"] for one in rows(files, "answers")} == {MARK}
    assert {one["email"] for one in rows(files, "people")} == {EMAIL, "guest@elsewhere.example"}


def test_it_has_no_secret_and_nothing_of_another_tenant(marked, other):
    _, files = opened(export.of_tenant(marked.tenant))
    everything = b"".join(files.values()).decode(errors="replace")
    keys = APIKey.objects.of(marked.tenant)
    secrets = {marked.owner.password, *keys.values_list("digest", flat=True)}
    assert not [secret for secret in secrets if secret in everything]
    theirs = (other.tenant.pk, other.key.pk, other.project.pk, other.tenant.slug + ".example")
    assert not [each for each in theirs if str(each) in everything]


def test_a_persons_export_has_what_is_theirs(marked):
    manifest, files = opened(export.of_person(marked.owner))
    assert manifest["of"]["person"] == EMAIL
    assert not [name for name in files if not files[name] and name not in {"holds.jsonl", "operator_log.jsonl"}]
    assert {one["user"] for one in rows(files, "audit")} == {str(marked.owner.pk)}
    [account] = rows(files, "account")
    assert (account["email"], "password" in account) == (EMAIL, False)
    assert "data" not in rows(files, "second_factors")[0]


def test_a_lost_file_is_told(marked):
    file = StoredFile.objects.of(marked.tenant).get()
    storage.remove(file)
    manifest, files = opened(export.of_tenant(marked.tenant))
    assert manifest["missing"] == [f"files/{file.pk}"]
    assert len(rows(files, "files")) == 1


def test_memory_stays_the_same_whatever_there_is(acme):
    event = {"tenant": acme.tenant, "actor": "a", "action": "b", "target_type": "c", "target_id": "d"}

    def peak(count):
        events = (AuditEvent(id=uuid7(), **event, target=f"{n}" * 50) for n in range(count))
        AuditEvent.objects.unscoped().bulk_create(events)
        tracemalloc.start()
        try:
            size = sum(map(len, export.of_tenant(acme.tenant)))
            return size, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(600)
    _, small = peak(1)
    _, large = peak(1500)
    assert large < small * 1.5


@pytest.mark.parametrize("address", ["/settings/export.zip", "/api/v1/tenant/export/"])
async def test_an_owner_downloads_the_archive(marked, address):
    browser = AsyncClient()
    await browser.aforce_login(marked.owner, backend="django.contrib.auth.backends.ModelBackend")
    answer = await browser.get(address, headers={"accept": "application/zip"})
    assert (answer.status_code, answer["content-type"]) == (200, "application/zip")
    assert f'filename="{SLUG}-' in answer["content-disposition"]
    manifest, _ = opened([piece async for piece in answer.streaming_content])
    assert manifest["of"]["tenant"] == SLUG


def test_owners_see_the_link_and_nobody_else_may(marked, acme):
    link, api = "/settings/export.zip", "/api/v1/tenant/export/"
    assert link in marked.browser.get("/settings/").content.decode()
    assert marked.browser.get(api).status_code == 200
    Membership.objects.of(marked.tenant).filter(user=marked.owner).update(role="admin")
    assert link not in marked.browser.get("/settings/").content.decode()
    assert [marked.browser.get(address).status_code for address in (link, api)] == [404, 403]
    assert Client(headers=acme.bearer).get(api).status_code == 403
    assert Client(headers=acme.admin_bearer).get(api).status_code == 200
    assert AuditEvent.objects.of(marked.tenant).filter(action="tenant.exported").count() == 1
