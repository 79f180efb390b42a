"""A tenant whose every kind of row has a mark in its texts, beside another one that is to stay as it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.utils import timezone

from base import storage
from base.ids import uuid7
from billing import reconcile
from billing.models import CreditGrant, LedgerTransfer, Rerating, ReratingSum, UsageRecord, UsageRollup, Wallet
from billing.rating import charge
from billing.reconcile import _cards
from billing.services import credits, rollups
from billing.writer.apply import apply_now
from billing.writer.operations import EndFacts, RequestFacts, Reserve, Settle
from fleet.adapters import add_adapter_folder
from gateway.apis.responses.models import StoredResponse
from gateway.apis.responses.rows import Owner
from gateway.apis.responses.runs import claim_of
from gateway.batches.files import begin_file, finish_file
from gateway.batches.models import Batch, BatchLine
from gateway.conversations import Conversation
from gateway.durable import answers
from gateway.durable.log import Head
from gateway.runtime import observed
from gateway.runtime.models import RefusalCount, RefusedRequest, TaskState
from routing.services.catalogue import add_model
from tenancy.models import Membership, Tenant, User
from tenancy.services import admin_keys, keys, links, members, tenants
from tenancy.services.mail import queue_mail
from tests.fleet.adapters.files import save
from tests.parties import PASSWORD

MARK = "quillmark"
SLUG, NAME = "zanzimark", "Zanzimark & Söhne"
EMAIL, PERSON = "quilla@quillmark.example", "Quilla Márksdotter"
CLASSES = {"input": 1000, "output": 77}


@dataclass
class Marked:
    """The tenant, with an owner who is in it alone and a member who is in another one too."""

    tenant: Tenant
    owner: User
    guest: User
    wallet: Wallet
    browser: Client


@pytest.fixture
def home(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    return tmp_path


def use(tenant, project, model, *, key=None, user=None):
    """Let a request be held, charged and summed up as a gateway and the jobs do."""
    wallet, some = Wallet.objects.get(tenant=tenant), uuid7()
    card = next(iter(_cards(connection).values()))
    made = Reserve(
        request=uuid7(), wallet=wallet.pk, amount=1_000_000, least=1, owner=some, deployment=some, card_version=card.id,
        tenant=tenant.pk, project=project.pk, api_key=key and key.pk, user=user and user.pk, model=model,
        facts=RequestFacts(end_user=tenant.slug),
    )  # fmt: skip
    route = {"model": model, "candidates": [model]}
    apply_now(
        [made, Settle(made.request, wallet.pk, charge(CLASSES, card, 10_000), CLASSES, EndFacts("stop", route=route))]
    )
    return made


def join(tenant, email, role="member"):
    _, address = members.invite_by_mail(tenant=tenant, email=email, role=role)
    return members.accept_invitation(token=address.rstrip("/").rpartition("/")[2], password=PASSWORD).user


def kept(tenant, project, identifier, user=None):
    claim = claim_of(Owner(tenant.pk, project.pk), identifier, user and user.pk)
    answers.claim(claim, identifier, uuid7())
    assert answers.store(identifier, answers.Stored(Head(200, (), True), MARK.encode()), {})


def stored(tenant, project):
    """Store a file, a batch of it, and a response."""
    file = begin_file(
        tenant=tenant.pk, project=project.pk, purpose="batch", filename=f"{MARK}.jsonl", size=9, seconds=None
    )
    draft = storage.drafts() / "draft"
    draft.write_bytes(MARK.encode())
    storage.put(file, draft)
    assert finish_file(file)
    own, ends = {"tenant": tenant, "project": project}, {"expires_at": timezone.now() + timedelta(days=1)}
    batch = Batch(
        **own, **ends, api_key=uuid7(), endpoint=MARK, input_file=file.id, metadata={MARK: "1"}, errors=[MARK]
    )
    batch.save(force_insert=True)
    BatchLine.objects.create(
        batch=batch, number=1, custom_id=MARK, offset=0, size=1, due_at=timezone.now(), answer=MARK
    )
    body = json.dumps({"text": MARK}).encode()
    StoredResponse(id=uuid7(), **own, **ends, status="completed", input=body, body=body, size=9).save(force_insert=True)
    return file


@pytest.fixture
def marked(home, acme, other):
    made = tenants.create_tenant(name=NAME, slug=SLUG, owner_email=EMAIL, plan="business")
    tenant, project = made.tenant, made.project
    token = made.invitation_address.rstrip("/").rpartition("/")[2]
    owner = members.accept_invitation(token=token, password=PASSWORD).user
    owner.name = PERSON
    owner.save()
    guest = join(tenant, "guest@elsewhere.example")
    Membership(tenant=other.tenant, user=guest, role="member").save(force_insert=True)
    members.invite_by_mail(tenant=tenant, email=f"open@{MARK}.example", by=owner)
    TOTP.activate(owner, generate_totp_secret())
    links.mint_link(user=owner)
    browser = Client()
    browser.force_login(owner, backend="django.contrib.auth.backends.ModelBackend")
    assert browser.get("/accounts/").status_code == 200  # notes the session
    queue_mail(to=EMAIL, subject=f"{PERSON} is welcome", text=MARK)

    said = json.dumps({"turns": [{"id": "q", "role": "user", "content": MARK}], "leaf": "q", "settings": {}}).encode()
    Conversation(
        id=uuid7(), tenant=tenant, user=owner, title=PERSON, content=said, words=MARK, size=9, changed_at=timezone.now()
    ).save(force_insert=True)
    key, _ = keys.create_key(tenant=tenant, project=project, name=f"{MARK} {PERSON}", created_by=owner)
    keys.create_key(tenant=tenant, project=project, name=f"{MARK} of nobody")
    admin_keys.create_admin_key(tenant=tenant, name=MARK, created_by=owner)
    project.name = MARK
    project.save()
    add_model(name="base", kinds=["chat"], context_length=512, rate_card="smollm2-135m-instruct", source="/m")
    adapter = add_adapter_folder(
        save(home / "lora", base_model_name_or_path=MARK), base="base", name="law", tenant=tenant
    )
    stored(tenant, project)
    kept(tenant, project, uuid7())
    kept(tenant, project, uuid7(), owner)
    at = timezone.now()
    RefusalCount(
        id=uuid7(), minute=at, tenant=tenant, api_key=key, status=404, code="x", model=MARK, count=1,
        last_request=uuid7(), last_at=at,
    ).save(force_insert=True)  # fmt: skip
    for user in (owner.pk, None):
        RefusedRequest(
            id=uuid7(), at=at, tenant=tenant, user=user, endpoint="/v1/responses", model=MARK, status=404, code="x",
            message=f"{MARK} isn't there.",
        ).save(force_insert=True)  # fmt: skip

    wallet = made.wallet
    credits.grant(
        wallet_id=wallet.pk, amount=5_000_000, kind=CreditGrant.Kind.PAID, key="paid", actor=EMAIL,
        reason=f"{NAME} paid, says {PERSON}", source=f"invoice of {SLUG}", paid_amount=500, currency="EUR",
    )  # fmt: skip
    use(tenant, project, adapter.model.name, key=key)
    use(tenant, project, "base", user=owner)
    use(other.tenant, other.project, "base", key=other.key)
    while rollups.consume_usage():
        pass
    own = adapter.model.name
    run = Rerating.objects.create(since=at, until=at, ended_at=at, model_names=["base", own], cards={own: "dear"})
    ReratingSum.objects.create(run=run, tenant=tenant.pk, model=own)
    for row in (tenant, Membership.objects.of(tenant).get(user=owner)):
        LogEntry.objects.create(
            user=other.owner, content_type=ContentType.objects.get_for_model(row), object_id=str(row.pk),
            object_repr=str(row), action_flag=CHANGE, change_message=f"Said {NAME} to {EMAIL}",
        )  # fmt: skip
    TaskState.objects.create(name="mail", error=f"{EMAIL} is unknown")
    found = {"severity": "info", "is_fine": False, "every_s": 60, "findings": [{"text": f"{EMAIL} of {NAME}"}]}
    observed.note(observed.Kind.CHECK, "mail", found)
    observed.note(observed.Kind.GATEWAY, "one", {"host": "here", "failing": {"tasks": [[f"{EMAIL} of {NAME}", ""]]}})
    assert not reconcile.check(connection)
    return Marked(tenant, owner, guest, Wallet.objects.get(pk=wallet.pk), browser)


def shown(cell):
    """Return a cell's text; JSON without its escapes."""
    text = bytes(cell).decode(errors="replace") if isinstance(cell, bytes | memoryview) else str(cell)
    return json.dumps(json.loads(text), ensure_ascii=False) if text[:1] in {"{", "["} else text


def texts():
    """Yield (table, text of a row) of the whole database."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')
            for row in cursor.fetchall():
                yield table, " | ".join(map(shown, row)).lower()


def tables_with(*words):
    """Return the tables in which one of the words stands, in whatever case."""
    return {table for table, text in texts() for word in words if word.lower() in text}


def files_with(home, *words):
    """Return the stored files in which one of the words stands, or whose name has it."""
    found = [path for path in home.rglob("*") if path.is_file() and path.parts[len(home.parts)] != "lora"]
    return {path for path in found for word in words if word.encode() in path.read_bytes() or word in path.name}


def books():
    """Return all figures of the ledger and of usage, and to which wallets, grants and requests they belong."""
    return {
        "transfers": list(
            LedgerTransfer.objects.order_by("id").values_list(
                "id", "debit", "credit", "amount", "code", "request", "grant", "key"
            )
        ),
        "usage": list(
            UsageRecord.objects.order_by("id").values_list(
                "id", "tenant", "api_key", "charge", "input_tokens", "output_tokens"
            )
        ),
        "hours": list(UsageRollup.objects.order_by("id").values_list("id", "tenant", "requests", "charge")),
        "grants": list(CreditGrant.objects.order_by("id").values_list("id", "wallet", "amount", "paid_amount")),
    }
