"""Statements as tenants and operators get them: pages, files, the management API, and proofs of single requests."""

from __future__ import annotations

import json

import msgspec
import pytest
from django.test import Client

from billing.models import SigningKey, Statement, UsageRecord
from billing.services import wallets
from billing.verify import sluice_verify
from gateway.apis.usage.endpoint import usage_of
from tests.billing.conftest import MovedClock
from tests.billing.statements.conftest import Shop
from tests.control.operators import browser_of, operator, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(acme, monkeypatch):
    """Acme's traffic in October and November; it is the second of December."""
    shop = Shop(wallets.open_wallet(tenant_id=acme.tenant.pk), MovedClock(monkeypatch))
    shop.at("10-31 10:00")
    shop.give(10**6)
    shop.serve()
    shop.at("11-03 10:00")
    shop.serve(waived=False)
    shop.at("12-01 10:00")
    shop.serve()
    shop.at("12-02 00:10")
    shop.seal()
    return shop


def test_a_tenant_finds_its_statements_on_billing(acme, shop):
    client = acme.client()
    page = client.get("/billing/").content.decode()
    for month in ("2026-10", "2026-11", "2026-12"):
        assert f'href="/billing/statements/{month}/"' in page
        assert f'href="/billing/statements/{month}/jsonl/"' in page
    text = text_of(client.get("/billing/statements/2026-11/"))
    assert "Statement 2" in text
    assert "01 November 2026 to 30 November 2026 (UTC)" in text
    assert "It is final" in text
    draft = text_of(client.get("/billing/statements/2026-12/"))
    assert "Draft" in draft
    assert "so far" in draft
    for form in ("jsonl", "csv", "ledger", "focus", "html"):
        answer = client.get(f"/billing/statements/2026-11/{form}/")
        assert answer.status_code == 200
        assert "no-store" in answer.headers["cache-control"]
    for path in ("2026-09/", "2026-11/pdf/", "soon/"):
        assert client.get(f"/billing/statements/{path}").status_code == 404


def test_only_who_sees_the_wallet_sees_statements(acme, shop, other):
    for client in (other.client(), Client()):
        assert client.get("/billing/statements/2026-10/").status_code != 200
    assert other.client().get("/billing/statements/2026-10/jsonl/").status_code == 404


def test_an_operator_finds_them_with_the_wallet(acme, shop):
    client = browser_of(operator())
    slug = acme.tenant.slug
    page = client.get(f"/operate/tenants/{slug}/wallet/").content.decode()
    assert f'href="/operate/tenants/{slug}/statements/2026-11/"' in page
    assert "Statement 2" in text_of(client.get(f"/operate/tenants/{slug}/statements/2026-11/"))
    assert client.get(f"/operate/tenants/{slug}/statements/2026-11/jsonl/").status_code == 200


def test_the_management_api_lists_and_sends_them(acme, shop):
    answer = Client().get("/api/v1/statements/", headers=acme.bearer)
    told = answer.json()
    assert [one["month"] for one in told["data"]] == ["2026-11", "2026-10"]
    assert told["drafts"] == ["2026-12"]
    november = Statement.objects.get(tenant=shop.tenant, number=2)
    found = [told["data"][0][name]["credits_micro"] for name in ("opening", "closing")]
    assert found == [november.opening, november.closing]
    for accepts in ("application/jsonl", "*/*"):
        sent = Client().get("/api/v1/statements/2026-11/jsonl/", headers={**acme.bearer, "accept": accepts})
        assert (sent.status_code, sent.headers["content-type"]) == (200, "application/jsonl")
    assert Client().get("/api/v1/statements/2026-11/pdf/", headers=acme.bearer).status_code == 404
    assert Client().get("/api/v1/statements/").status_code == 401


def test_everybody_gets_the_public_keys(acme, shop):
    [key] = Client().get("/api/v1/seal-keys/").json()["data"]
    assert key["public_key"] == SigningKey.objects.get().public_key
    assert key["pem"].startswith("-----BEGIN PUBLIC KEY-----")
    assert set(key) == {"number", "public_key", "pem", "since", "signature", "own_signature"}


def test_usage_has_its_card_and_once_its_day_is_sealed_the_proof(acme, shop, tmp_path, capsys):
    record = UsageRecord.objects.filter(tenant=shop.tenant).order_by("settled_at")[1]
    answer = json.loads(msgspec.json.encode(usage_of(record.tenant, record.project, record.request)))
    card = sluice_verify.Card(answer["card"])
    tokens = [answer["proof"]["leaf"][name] for name in sluice_verify.CLASSES]
    assert card.digest == answer["card"]["digest"] == answer["proof"]["leaf"]["card"]
    assert sum(card.parts(tokens, answer["multiplier_bp"]).values()) == record.charge
    statement, kept = tmp_path / "statement.jsonl", tmp_path / "usage.json"
    statement.write_text(shop.statement("2026-11"))
    kept.write_text(json.dumps(answer))
    assert sluice_verify.main([str(statement), "--proof", str(kept)]) == 0
    assert "the proof of request" in capsys.readouterr().out
    answer["proof"]["seal"]["size"] += 1
    kept.write_text(json.dumps(answer))
    assert sluice_verify.main([str(statement), "--proof", str(kept)]) == 1
    made = shop.serve()
    pending = usage_of(record.tenant, record.project, made.request)
    assert pending.proof is None
