"""Run in the stack's home: plans with room, three tenants, fake and (if there) real models. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.utils import timezone  # noqa: E402

from billing.models import Plan  # noqa: E402
from billing.services import cards, plans, wallets  # noqa: E402
from gateway.models import Project, Tenant  # noqa: E402
from gateway.services.admin_keys import create_admin_key  # noqa: E402
from gateway.services.keys import create_key  # noqa: E402
from routing.services.catalogue import add_model  # noqa: E402
from routing.services.defaults import ensure_default_routes  # noqa: E402

RATES = {
    "chat": {"input": 3_000_000, "cache_read": 700_000, "output": 11_000_000},
    "embedding": {"input": 1_300_000, "output": 0},
}


def main() -> None:
    options = json.loads(sys.argv[1])
    plans.ensure_default_plans()
    room = {"request_limit": 1_000_000, "request_burst": 1_000_000, "credit_limit": 10**12, "credit_burst": 10**12}
    for plan in Plan.objects.all():
        plans.publish_version(plan, **room, concurrency=64, allowed_models=[], adapters=1)
    for name, kind in (("fake-chat", "chat"), ("fake-embed", "embedding")):
        cards.publish(name, {0: RATES[kind]})
        fake = {"architecture": "fake", "kv_tokens": 16_384, "options": {"kinds": [kind], **options.get(kind, {})}}
        add_model(name=name, kinds=[kind], context_length=8192, rate_card=name, source="fake", options=fake)
    ensure_default_routes()
    tenants = {}
    for slug in ("free", "business", "max"):
        tenant, _ = Tenant.objects.get_or_create(slug=f"stack-{slug}", defaults={"name": slug})
        project = Project(tenant=tenant, name="Default")
        project.save(force_insert=True)
        wallets.open_wallet(tenant_id=tenant.id)
        plans.subscribe(tenant_id=tenant.id, plan_slug=slug, at=timezone.now())
        _, secret = create_key(tenant=tenant, project=project, name="stack", scopes=["inference", "management"])
        _, admin = create_admin_key(tenant=tenant, name="stack")
        tenants[slug] = {"id": str(tenant.id), "key": secret, "admin_key": admin}
    print(json.dumps(tenants))


main()
