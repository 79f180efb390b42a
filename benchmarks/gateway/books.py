"""Run in the gateway's home: `seed` makes tenants and deployments, `audit` says what the books hold. JSON out.

The deployments are fake engines, or with an address in SLUICE_BENCH_UPSTREAM the models of the server there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

RATES = {"input": 3_000_000, "cache_read": 700_000, "output": 11_000_000}
TENANTS = 8
TOKENS = 64
PACE = 0.02
MODELS = {
    "whole": {"tokens": TOKENS, "tokens_per_delta": TOKENS, "cached": 0.4},  # what answers without streaming
    "stream": {"tokens": TOKENS, "cached": 0.4},
    "paced": {"tokens": TOKENS, "cached": 0.4, "delay": PACE},
}


def seed() -> list[str]:
    """Make the database and everything a request needs; return the tenants' keys."""
    from django.core.management import call_command
    from django.utils import timezone

    from billing.models import CreditGrant, Plan
    from billing.services import cards, credits, plans, wallets
    from routing.services.catalogue import add_model
    from tenancy.models import Project, Tenant
    from tenancy.services.keys import create_key

    call_command("migrate", verbosity=0)
    plans.ensure_default_plans()
    room = {"request_limit": 10**9, "request_burst": 10**9, "credit_limit": 10**15, "credit_burst": 10**15}
    plans.publish_version(Plan.objects.get(slug="max"), **room, concurrency=256, allowed_models=[])
    cards.publish("bench", {0: RATES})
    upstream = os.environ.get("SLUICE_BENCH_UPSTREAM")
    for name, options in MODELS.items():
        engine = {"source": "", "backend": "fake", "options": options}
        if upstream:
            remote = {"model": name, "max_output": TOKENS, "concurrency": 1024, "shared_prefixes": True}
            engine = {"source": upstream, "backend": "openai", "options": remote}
        add_model(name=name, kinds=["chat"], context_length=8192, rate_card="bench", **engine)
    keys = []
    promotion = {"amount": 10**15, "kind": CreditGrant.Kind.PROMOTIONAL}
    for name in (f"bench-{number}" for number in range(TENANTS)):
        tenant = Tenant.objects.create(slug=name, name=name)
        project = Project(tenant=tenant, name="Default")
        project.save(force_insert=True)
        wallet = wallets.open_wallet(tenant_id=tenant.id)
        credits.grant(wallet_id=wallet.id, key=name, **promotion)
        plans.subscribe(tenant_id=tenant.id, plan_slug="max", at=timezone.now())
        keys.append(create_key(tenant=tenant, project=project, name="bench")[1])
    return keys


def audit() -> dict[str, object]:
    """Return records by model, what the ledger charged, what left the wallets, and the open holds."""
    from django.db.models import Count, Sum

    from billing.models import Hold, LedgerTransfer, UsageRecord, Wallet

    records = UsageRecord.objects.values_list("model").annotate(Count("request"), Sum("charge"))
    moved = {
        code: int(LedgerTransfer.objects.filter(code=code).aggregate(all=Sum("amount"))["all"] or 0)
        for code in (LedgerTransfer.Code.GRANT, LedgerTransfer.Code.CHARGE)
    }
    left = int(Wallet.objects.aggregate(all=Sum("posted"))["all"])
    return {
        "records": {model: {"count": count, "charge": int(charge)} for model, count, charge in records},
        "ledger": moved[LedgerTransfer.Code.CHARGE],
        "wallets": moved[LedgerTransfer.Code.GRANT] - left,
        "holds": Hold.objects.count(),
    }


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()
print(json.dumps({"seed": seed, "audit": audit}[sys.argv[1]]()))
