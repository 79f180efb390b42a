"""Run in the gateway's home: a tenant with credit and a plan without limits, and the models. Prints its key as JSON."""

from __future__ import annotations

import json
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from billing.models import CreditGrant, Plan  # noqa: E402
from billing.services import credits, plans, wallets  # noqa: E402
from fleet import local_models  # noqa: E402
from routing.services.defaults import ensure_default_routes  # noqa: E402
from tenancy.models import Project, Tenant  # noqa: E402
from tenancy.services.admin_keys import create_admin_key  # noqa: E402
from tenancy.services.keys import create_key  # noqa: E402
from tests.conformance.models import add_models  # noqa: E402


def main() -> None:
    plans.ensure_default_plans()
    room = {"request_limit": 1_000_000, "request_burst": 1_000_000, "credit_limit": 10**12, "credit_burst": 10**12}
    plans.publish_version(Plan.objects.get(slug="max"), **room, concurrency=64, allowed_models=[])
    add_models()
    local_models.add_first_models()
    ensure_default_routes()
    stores = Tenant.Storage.BY_DEFAULT  # as the clients of OpenAI's API expect
    tenant = Tenant.objects.create(slug="conformance", name="Conformance", response_storage=stores)
    project = Project(tenant=tenant, name="Default")
    project.save(force_insert=True)
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant.id, "max")
    credits.grant(wallet_id=wallet.id, amount=10**13, kind=CreditGrant.Kind.PROMOTIONAL, key="conformance")
    _, secret = create_key(tenant=tenant, project=project, name="conformance", scopes=["inference", "management"])
    _, admin = create_admin_key(tenant=tenant, name="conformance")
    print(json.dumps({"key": secret, "admin_key": admin}))


main()
