"""Run in the stack's home: `tenants` makes wallets whose grants end under load, `findings` reconciles. JSON out."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def tenants(seconds: str) -> dict[str, dict[str, str]]:
    """Make two tenants whose credit is a row of grants, the last of which ends after `seconds`; return their keys.

    Their priorities go against their ends, so that what ends first isn't what is burnt first.
    """
    from django.utils import timezone

    from billing.models import CreditGrant, Plan
    from billing.services import credits, plans, wallets
    from tenancy.models import Project, Tenant
    from tenancy.services.keys import create_key

    plan, is_new = Plan.objects.get_or_create(slug="penniless", defaults={"name": "Penniless"})
    if is_new:
        terms = {name: getattr(plans.latest_version("max"), name) for name in plans.TERMS}
        plans.publish_version(plan, **{**terms, "monthly_credits": 0})
    made = {}
    for slug in ("ending-0", "ending-1"):
        tenant = Tenant.objects.create(slug=slug, name=slug)
        project = Project(tenant=tenant, name="Default")
        project.save(force_insert=True)
        wallet = wallets.open_wallet(tenant_id=tenant.id)
        plans.subscribe(tenant_id=tenant.id, plan_slug=plan.slug, at=timezone.now())
        count = 20
        for number in range(count):
            credits.grant(
                wallet_id=wallet.id,
                amount=60_000,
                kind=CreditGrant.Kind.PROMOTIONAL,
                key=f"{slug}:{number}",
                priority=10 + (7 * number) % 40,
                expires_at=timezone.now() + timedelta(seconds=3 + float(seconds) * (number + 1) / count),
            )
        _, secret = create_key(tenant=tenant, project=project, name="faults")
        made[slug] = {"id": str(tenant.id), "key": secret}
    return made


def findings() -> dict[str, object]:
    """Return what reconciliation finds, and how many grants ended with something left."""
    from django.db import connection

    from billing import reconcile
    from billing.models import CreditGrant

    found = reconcile.check(connection)
    ended = CreditGrant.objects.filter(expired_at__isnull=False).count()
    return {"findings": [f"{one.check} {one.subject}: {one.detail}" for one in found], "ended": ended}


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()
print(json.dumps({"tenants": tenants, "findings": findings}[sys.argv[1]](*sys.argv[2:])))
