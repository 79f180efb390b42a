"""A gateway killed under load loses no acknowledged settle and leaves books that are right."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from django.db import connection

from billing import reconcile
from billing.models import Hold, UsageRecord, Wallet
from billing.services.holds import end_leases_of_earlier_owners, take_expired
from billing.writer.apply import apply_now
from billing.writer.operations import Release
from tests.billing.writer.world import make_wallet
from tests.stack.programs.writer_load import CALLERS

pytestmark = [pytest.mark.contract, pytest.mark.stack, pytest.mark.django_db(transaction=True)]

KILLS = 3
ACKNOWLEDGED = 150
PROGRAM = Path(__file__).parents[1] / "programs" / "writer_load.py"


def test_kill_under_load_loses_nothing_that_was_acknowledged():
    wallet = make_wallet(credit=10**9)
    known = {key: connection.settings_dict[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    arguments = [json.dumps(known, default=str), json.dumps([str(wallet.tenant_id), str(wallet.pk)])]
    acknowledged = set()
    for _ in range(KILLS):
        command = [sys.executable, str(PROGRAM), *arguments]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(PROGRAM.parents[3])}
        )
        lines = [child.stdout.readline() for _ in range(ACKNOWLEDGED)]
        child.kill()
        lines += [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        assert child.wait() == -9
        acknowledged.update(uuid.UUID(line.strip()) for line in lines)
        child.stdout.close()
    settled = set(UsageRecord.objects.values_list("request", flat=True))
    assert acknowledged <= settled
    assert Hold.objects.count() <= KILLS * CALLERS
    assert reconcile.check(connection, recompute=False) == []
    end_leases_of_earlier_owners(uuid.uuid4())
    apply_now([Release(orphan.request, orphan.wallet) for orphan in take_expired(limit=1000)])
    assert Wallet.objects.get(pk=wallet.pk).held == 0
    assert Wallet.objects.get(pk=wallet.pk).posted == 10**9 - 3 * len(settled)
    assert reconcile.check(connection, recompute=False) == []
