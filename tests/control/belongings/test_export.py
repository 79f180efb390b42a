"""An export has everything of its owner, nothing of others, no secret, and fits any memory."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zipfile
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test import AsyncClient, Client
from django.utils import timezone

from base import storage
from base.ids import uuid7
from billing.models import LedgerAccount, LedgerTransfer, UsageRecord, UsageRollup, Wallet
from control.belongings import export
from control.belongings.kinds import OF_TENANT
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.runtime.models import RefusalCount
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
    assert empty <= {
        f"{name}.jsonl"
        for name in (
            *("holds", "budgets", "budget_windows", "key_budgets", "alerts", "deliveries", "web_hooks"),
            *("purchases", "vouchers", "missed_promises", "promises_by_day", "seals", "statements", "recurring_grants"),
            "invoices",
        )
    }
    [file], [adapter] = rows(files, "files"), rows(files, "adapters")
    assert files[f"files/{file['id']}"] == MARK.encode()
    assert len(files[f"adapters/{adapter['id']}.safetensors"]) > 100
    assert rows(files, "responses")[0]["body"] == {"text": MARK}
    assert {one["body"] for one in rows(files, "answers")} == {MARK}
    [conversation] = rows(files, "conversations")
    assert (conversation["content"]["turns"][0]["content"], "words" in conversation) == (MARK, False)
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


LONG, AT_ONCE = 1000, 50


def write_long(party):
    """Write LONG rows of each long kind; some are of the same moment."""
    now, tenant, some = timezone.now(), party.tenant, uuid7()
    moments = [now - timedelta(hours=n // 3) for n in range(LONG)]
    own = {"tenant": tenant.pk, "model": "m"}
    UsageRecord.objects.bulk_create(
        UsageRecord(
            **own, day=at.date(), request=uuid7(), project=some, wallet=some, deployment=some, card_version=some,
            charge=1, held=1, reserved_at=at,
        )
        for at in moments
    )  # fmt: skip
    UsageRollup.objects.bulk_create(UsageRollup(**own, hour=at, project=uuid7()) for at in moments)
    RefusalCount.objects.bulk_create(
        RefusalCount(
            id=uuid7(), minute=at, tenant=party.tenant, status=404, code="x", count=1, last_request=some, last_at=at
        )
        for at in moments
    )
    wallet = LedgerAccount.objects.get(wallet__tenant=tenant)
    second = Wallet.objects.create(tenant=tenant, name="second")
    others = [
        LedgerAccount.objects.create(kind="wallet", wallet=second),
        LedgerAccount.objects.get_or_create(kind="usage")[0],
    ]
    LedgerTransfer.objects.bulk_create(
        LedgerTransfer(debit=pair[n % 2], credit=pair[1 - n % 2], amount=1, code=2, order=n, booked_at=at)
        for n, at in enumerate(moments)
        for pair in [(wallet, others[n % 100 > 0])]
    )
    batch = Batch(
        tenant=tenant, project=party.project, api_key=some, endpoint="x", input_file=some,
        expires_at=now, ended_at=now,
    )  # fmt: skip
    batch.save(force_insert=True)
    BatchLine.objects.bulk_create(
        BatchLine(batch=batch, number=n, custom_id=str(n), offset=0, size=1, due_at=now) for n in range(LONG)
    )


def read_by(plan):
    """Return how many rows a plan has read from tables and indexes."""
    inner = plan.get("Plans", [])
    own = 0 if inner else plan["Actual Rows"] * plan["Actual Loops"]
    return own + plan.get("Rows Removed by Filter", 0) + sum(map(read_by, inner))


@pytest.mark.postgresql
@pytest.mark.django_db
def test_a_chunk_of_a_long_history_reads_little_more_than_its_rows(acme, other):
    for party in (acme, other):
        write_long(party)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    read = {}

    def explain(execute, sql, params, many, context):
        if f'FROM "{kind.model._meta.db_table}"' in sql:
            cursor = context["cursor"].cursor
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
            read[kind.name] = max(read.get(kind.name, 0), read_by(cursor.fetchone()[0][0]["Plan"]))
        return execute(sql, params, many, context)

    long = {"usage", "usage_by_hour", "refusals", "transfers", "batch_lines"}
    for kind in (replace(one, at_once=AT_ONCE) for one in OF_TENANT if one.name in long):
        with connection.execute_wrapper(explain):
            found = [row["id"] for values in export._chunks(kind, acme.tenant, ["id"]) for row in values]
        assert sorted(found) == sorted(kind.rows(acme.tenant).values_list("id", flat=True))
        assert len(found) >= LONG
    assert read.keys() == long
    assert {name: most for name, most in read.items() if most > 4 * AT_ONCE} == {}
