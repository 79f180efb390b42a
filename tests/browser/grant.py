"""Grant a tenant credit: `python -m tests.browser.grant SLUG MICRO`."""

from __future__ import annotations

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from billing.models import CreditGrant, Wallet  # noqa: E402
from billing.services import credits  # noqa: E402

wallet = Wallet.objects.get(tenant__slug=sys.argv[1])
credits.grant(wallet_id=wallet.id, amount=int(sys.argv[2]), kind=CreditGrant.Kind.PAID, key="browser")
print("{}")
