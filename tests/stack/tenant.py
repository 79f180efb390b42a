"""Run in the stack's home: more tenants with exactly the credit that is asked for. Prints one JSON object by slug.

Arguments: a JSON object of slugs, each with the µcr of its only grant; for a plan of their own, one with its terms.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.utils import timezone  # noqa: E402

from billing.models import CreditGrant, Plan  # noqa: E402
from billing.services import credits, plans, wallets  # noqa: E402
from gateway.models import Project, Tenant  # noqa: E402
from gateway.services.keys import create_key  # noqa: E402


def main() -> None:
    amounts: dict[str, int] = json.loads(sys.argv[1])
    more: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    slug = "-".join(["penniless", *(amounts if more else ())])
    plan, is_new = Plan.objects.get_or_create(slug=slug, defaults={"name": slug})
    if is_new:
        terms = {name: getattr(plans.latest_version("free"), name) for name in plans.TERMS}
        plans.publish_version(plan, **{**terms, "monthly_credits": 0, **more})
    print(json.dumps({slug: make_tenant(slug, amount, plan) for slug, amount in amounts.items()}))


def make_tenant(slug: str, amount: int, plan: Plan) -> dict[str, Any]:
    tenant = Tenant.objects.create(slug=slug, name=slug)
    project = Project(tenant=tenant, name="Default")
    project.save(force_insert=True)
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant_id=tenant.id, plan_slug=plan.slug, at=timezone.now())
    if amount:
        kind = CreditGrant.Kind.PROMOTIONAL
        credits.grant(wallet_id=wallet.id, amount=amount, kind=kind, key=f"test:{slug}", reason="test", actor="test")
    _, secret = create_key(tenant=tenant, project=project, name="stack", scopes=["inference", "management"])
    expiry = timezone.now() + timedelta(seconds=2)
    expiring, expiring_secret = create_key(tenant=tenant, project=project, name="expiring", expires_at=expiry)
    return {
        "id": str(tenant.id),
        "key": secret,
        "expiring": {"id": str(expiring.id), "key": expiring_secret, "at": expiry.timestamp()},
    }


main()
