"""Run in the stack's home: what the lines of a batch (its name is the argument) were charged, as one JSON object."""

from __future__ import annotations

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from billing.models import UsageRecord  # noqa: E402

rows = UsageRecord.objects.latest_revisions().filter(route__batch=sys.argv[1], charge__gt=0)
found = list(rows.values_list("request", "charge", "multiplier_bp"))
multipliers = sorted({multiplier for _, _, multiplier in found})
print(json.dumps({"charged": len(found), "sum": sum(charge for _, charge, _ in found), "multipliers": multipliers}))
