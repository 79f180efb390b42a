"""The demo tenant of a first run: plan, credit, one API key, and a person who may see everything."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import transaction

from billing.services import plans, wallets
from tenancy.models import APIKey, Membership, Project, Tenant, User
from tenancy.services.keys import create_key, digest_of

EMAIL = "demo@sluice.example"
SLUG = "demo"
PLAN = "business"


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo tenant's key and the operator who signs in by link."""

    tenant: Tenant
    user: User
    api_key: str


def demo_file() -> Path:
    """Return where the demo key is kept (mode 0600); production refuses to start while it exists."""
    path: Path = settings.SLUICE_HOME / "demo.json"
    return path


@transaction.atomic
def ensure_demo() -> Demo:
    """Return the demo tenant, making what is missing of it; its key is made anew when it can't be used any more."""
    user = User.objects.filter(email=EMAIL).first()
    if user is None:
        user = User.objects.create_superuser(EMAIL, name="Demo operator")
    tenant, _ = Tenant.objects.get_or_create(slug=SLUG, defaults={"name": "Demo"})
    project, _ = Project.objects.of(tenant).get_or_create(name="Default", defaults={"tenant": tenant})
    Membership.objects.of(tenant).get_or_create(user=user, defaults={"tenant": tenant, "role": Membership.Role.OWNER})
    wallets.open_wallet(tenant_id=tenant.id)
    if not tenant.subscriptions.filter(state="active").exists():
        plans.subscribe(tenant_id=tenant.id, plan_slug=PLAN)
    return Demo(tenant, user, _kept_key(tenant) or _new_key(tenant, project, user))


def _kept_key(tenant: Tenant) -> str:
    """Return the key in the demo file, if it still works."""
    path = demo_file()
    if not path.is_file():
        return ""
    secret = str(json.loads(path.read_text()).get("api_key", ""))
    usable = APIKey.objects.of(tenant).filter(digest=digest_of(secret), revoked_at=None, expires_at=None)
    return secret if usable.exists() else ""


def _new_key(tenant: Tenant, project: Project, user: User) -> str:
    _, secret = create_key(tenant=tenant, project=project, name="demo", created_by=user)
    path = demo_file()
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"api_key": secret}, file)
    draft.replace(path)
    return secret
