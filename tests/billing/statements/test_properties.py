"""Any course of business: statements are right by the verifier, and carry the wallet."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.models import Statement, Wallet
from billing.services import wallets
from billing.statements import months
from billing.verify import sluice_verify
from tests.billing.conftest import MovedClock, make_tenant
from tests.billing.statements.conftest import Shop

pytestmark = pytest.mark.django_db
_DAY = timedelta(days=1)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


@settings(max_examples=8)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["give", "plan", "serve", "estimate", "correct", "refund", "rerate", "waive", "day"]),
            st.integers(1, 4_000),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_whatever_happens_the_statements_carry_the_wallet(steps, tmp_path_factory):
    """Any course of business: the months are right by the verifier, and close with what the wallet has posted."""
    saved = pytest.MonkeyPatch()
    try:
        with transaction.atomic():
            shop = Shop(wallets.open_wallet(tenant_id=make_tenant().pk), MovedClock(saved))
            day, estimated, served = 20, [], []
            _set(shop, day)
            shop.give(5_000)
            for what, number in steps:
                match what:
                    case "give":
                        shop.give(number)
                    case "plan":
                        ends = datetime(2026, 10, 1, tzinfo=UTC) + (day + 2) * _DAY
                        shop.give(number, kind="plan", expires_at=ends, priority=0)
                    case "serve" | "estimate":
                        classes = {"input": number, "output": number // 7}
                        made = shop.serve(classes, exact=what == "serve")
                        if what == "estimate":
                            estimated.append(made)
                        else:
                            served.append((made, classes))
                    case "refund" if served:
                        shop.refund(served[-1][0], 1 + number % 100)
                    case "rerate" if served:
                        shop.rerate(*served.pop(), times=1 + number % 3)
                    case "correct" if estimated:
                        shop.correct(estimated.pop(), {"input": number})
                    case "waive":
                        shop.serve({}, waived=True)
                    case "day":
                        day += 1 + number % 9
                        _set(shop, day)
            _set(shop, 75)
            shop.seal()
            folder = tmp_path_factory.mktemp("drawn")
            paths = []
            for name in ("2026-10", "2026-11", "2026-12"):
                if Statement.objects.filter(tenant=shop.tenant, month=months.parsed(name)) or name == "2026-12":
                    paths.append(folder / f"{name}.jsonl")
                    paths[-1].write_text(shop.statement(name))
            list(sluice_verify.verify([str(path) for path in paths], None, []))
            assert lines_of(paths[-1].read_text())[-1]["closing"] == Wallet.objects.get(pk=shop.wallet.pk).posted
            transaction.set_rollback(True)
    finally:
        saved.undo()


def _set(shop, day):
    shop.clock.set(datetime(2026, 10, 1, 12, tzinfo=UTC) + day * _DAY)
