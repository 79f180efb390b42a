"""Run in the stack's home: make a tenant's adapter of the fake model if it has none, which no worker serves. Prints one
JSON object: its id, and what its stored tensors hash to.

Argument: the tenant's slug.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from gateway.files.storage import read  # noqa: E402
from gateway.models import Tenant  # noqa: E402
from gateway.services.adapters import add_adapter_folder  # noqa: E402
from routing.models import Adapter  # noqa: E402
from tests.gateway.adapters.files import save  # noqa: E402


def main() -> None:
    tenant = Tenant.objects.get(slug=f"stack-{sys.argv[1]}")
    adapter = Adapter.objects.filter(model__tenant=tenant).first()
    if adapter is None:
        with tempfile.TemporaryDirectory() as folder:
            adapter = add_adapter_folder(save(Path(folder)), base="fake-chat", name="own", tenant=tenant)
    with read(adapter) as tensors:
        print(json.dumps({"id": str(adapter.id), "sha256": hashlib.sha256(tensors.read()).hexdigest()}))


main()
