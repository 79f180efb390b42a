"""Run in the benchmark's home with names: makes a tenant of the plan Business for each, prints their keys as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from tenancy.services.keys import create_key  # noqa: E402
from tenancy.services.tenants import create_tenant  # noqa: E402

PLAN = "business"

keys = {}
for name in sys.argv[1:]:
    made = create_tenant(name=name, slug=name, owner_email=f"{name}@sluice.example", plan=PLAN)
    keys[name] = create_key(tenant=made.tenant, project=made.project, name="benchmark")[1]
print(json.dumps(keys))
