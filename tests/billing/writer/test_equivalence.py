"""Any operations, in any batches, through the writer: every answer and every row as one operation at a time."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.ids import uuid7
from billing import reconcile
from billing.codes import Code
from billing.models import CreditGrant, Hold, LedgerTransfer, OutboxEvent, UsageRecord, Wallet
from billing.writer.apply import apply_now, groups_of_distinct
from billing.writer.operations import (
    EndFacts,
    Extend,
    Refund,
    Release,
    Renew,
    Repin,
    RequestFacts,
    Rerate,
    Reserve,
    Settle,
    TrueUp,
)
from tests.billing.writer.reference import FOREVER, Grant, Purse, Reference
from tests.billing.writer.world import OWNER, grant, make_wallet, open_desk, reserve

pytestmark = [pytest.mark.slow, pytest.mark.contract, pytest.mark.django_db(transaction=True)]

OTHER = uuid.uuid4()
KINDS = list(CreditGrant.Kind)
amounts = st.integers(0, 60)
some_models = st.sampled_from([(), (), (), ("a",), ("b", "c")])
MODELS = ("a", "b", "c", 'a "m\\odel", {really}')
CLOSING = ["settle", "settle", "estimate", "release", "true-up", "true-up", "refund", "refund", "rerate", "rerate"]
OPERATIONS = ["reserve", "extend", "repin", "renew", *CLOSING]
RUNS = [uuid.uuid4() for _ in range(3)]
who = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7))
steps = st.lists(
    st.one_of(
        st.lists(st.tuples(who, amounts, amounts, st.booleans()), min_size=1, max_size=24),
        st.tuples(st.integers(0, 2), st.integers(1, 80), some_models),  # a grant to a wallet
    ),
    min_size=1,
    max_size=6,
)
first_grants = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 60),
        st.sampled_from(KINDS),
        st.integers(0, 3),
        st.sampled_from([None, 1, 2]),
        some_models,
    ),
    max_size=8,
)


def build(grants, overdraft):
    """Three wallets with the grants, in the database and in the reference."""
    rows = [make_wallet(overdraft=limit) for limit in (0, overdraft, 0)]
    reference = Reference({row.pk: Purse(overdraft=row.overdraft_limit) for row in rows})
    for number, amount, kind, priority, expiry, models in grants:
        ends = None if expiry is None else timezone.now() + timedelta(days=expiry)
        give(reference, rows[number], amount, kind=kind, priority=priority, ends=ends, models=models)
    return rows, reference


def give(reference, wallet, amount, *, kind, priority=50, ends=None, models=()):
    time.sleep(0.002)  # SQLite's Now() counts milliseconds; a grant must not seem older than the hold before it
    made = grant(wallet, amount, kind, priority=priority, expires_at=ends, models=models)
    reference.now += 1
    purse = reference.purses[wallet.pk]
    purse.posted += amount
    order = (priority, ends is None, ends, {"rollover": 0, "paid": 2}.get(kind, 1), reference.now)
    purse.grants.append(Grant(made.pk, made.remaining, order, since=reference.now, until=FOREVER, models=models))


def operation(choice, rows, requests):  # noqa: PLR0911 - one operation each
    (kind, number), amount, least, flag = choice
    wallet, request = rows[number % 3], requests[number]
    match kind:
        case "reserve":
            owner, model = OWNER if number % 2 else OTHER, MODELS[amount % 4]
            return reserve(wallet, amount, min(amount, least), request, owner, model=model)
        case "extend":
            return Extend(request, wallet.pk, amount + 30, least)
        case "repin":
            facts = {"route": {"rule": 'r "{}', "candidates": [{"load": None}]}, "task": "chat"} if flag else {}
            pinned = uuid.UUID(int=least), uuid.UUID(int=amount), MODELS[least % 4]
            return Repin(request, wallet.pk, amount + 30, least, *pinned, RequestFacts(**facts))
        case "settle":
            moved = {"route": {"attempts": [{"node": 'n "1', "load": None}]}} if flag else {}
            facts = {"finish": 'a "b"', **moved}
            return Settle(request, wallet.pk, amount, {"input": amount, "output": least}, EndFacts(**facts))
        case "estimate":
            return Settle(request, wallet.pk, amount, {"input": amount}, exact=False)
        case "true-up":
            return TrueUp(request, wallet.pk, amount, {"input": amount, "output": least}, "stop" if flag else "")
        case "refund":
            said = {"key": uuid.uuid4().hex, "actor": 'a "b"', "reason": "r"}
            code = Code.PROMISE if flag else Code.REQUEST_REFUND
            return Refund(request=request, wallet=wallet.pk, amount=least + 1, code=code, **said)
        case "rerate":
            priced = {"card_version": uuid.UUID(int=amount), "multiplier_bp": 9_000 + least, "run": RUNS[amount % 3]}
            said = {"actor": "a", "reason": "r"}
            return Rerate(request=request, wallet=wallet.pk, revision=least % 3, charge=amount, **priced, **said)
        case "release":
            return Release(request, wallet.pk)
        case _:
            return Renew(OWNER if flag else OTHER, {r: {"input": amount, "output": least} for r in requests[:number]})


def assert_rows(rows, reference):
    wallets = {row.pk: row for row in Wallet.objects.filter(pk__in=[row.pk for row in rows])}
    for pk, purse in reference.purses.items():
        assert (wallets[pk].posted, wallets[pk].held) == (purse.posted, purse.held)
        left = dict(CreditGrant.objects.filter(wallet=pk).values_list("pk", "remaining"))
        assert left == {one.id: one.remaining for one in purse.grants}
    mine = {"wallet__in": list(reference.purses)}
    holds = {h.pk: [h.wallet_id, h.amount, h.owner, h.checkpoint] for h in Hold.objects.filter(**mine)}
    for h in Hold.objects.filter(**mine):
        assert (h.deployment, h.card_version, h.model, h.facts) == reference.pins[h.pk]
    assert holds == {r: [w, amount, owner, kept] for r, (w, amount, owner, _, kept) in reference.holds.items()}
    records = {r.request: r for r in UsageRecord.objects.filter(**mine, revision=0)}
    assert records.keys() == reference.records.keys()
    for request, (charge, classes, held) in reference.records.items():
        record = records[request]
        assert (record.charge, record.held, record.revision) == (charge, held, 0)
        *pinned, facts = reference.pins[request]
        assert [record.deployment, record.card_version, record.model] == pinned
        assert (record.route, record.task) == (facts.get("route", {}), facts.get("task", ""))
        assert (record.input_tokens, record.output_tokens) == (classes.get("input", 0), classes.get("output", 0))
    corrected = {}
    for r in UsageRecord.objects.filter(**mine, revision__gt=0).order_by("revision"):
        assert (r.held, r.revision) == (records[r.request].held, len(corrected.setdefault(r.request, [])) + 1)
        classes = {name: tokens for name in ("input", "output") if (tokens := getattr(r, f"{name}_tokens"))}
        corrected[r.request].append((r.charge, r.refunded, classes, r.exact, r.card_version, r.multiplier_bp))
    assert corrected == {
        request: [
            (c, refunded, {n: t for n, t in classes.items() if t}, *rest) for c, refunded, classes, *rest in found
        ]
        for request, found in reference.revisions.items()
    }
    assert_transfers(reference, records)


def assert_transfers(reference, records):
    transfers = LedgerTransfer.objects.filter(request__in=list(records), code=LedgerTransfer.Code.CHARGE)
    assert set(transfers.values_list("request", "order", "grant_id", "amount")) == reference.transfers
    corrections = LedgerTransfer.objects.filter(request__in=list(records)).exclude(code=LedgerTransfer.Code.CHARGE)
    columns = ("request", "code", "order", "grant_id", "amount", "credit__kind")
    signed = {(r, c, o, g, a if kind == "wallet" else -a) for r, c, o, g, a, kind in corrections.values_list(*columns)}
    assert signed == reference.corrections
    told_again = [tuple(r) for event in OutboxEvent.objects.all() for r in event.payload.get("revisions", ())]
    made = {(str(request), at) for request, found in reference.revisions.items() for at in range(1, len(found) + 1)}
    assert made <= set(told_again)
    assert len(told_again) == len(set(told_again))
    told = [r for event in OutboxEvent.objects.all() for r in event.payload["records"]]
    assert sorted(told) == sorted({*map(str, records), *told})
    assert {str(request) for request in records} <= set(told)


EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@given(steps=steps, grants=first_grants, overdraft=st.integers(0, 30))
@EXAMPLES
def test_writer_equals_one_operation_at_a_time(transactional_db, steps, grants, overdraft):
    rows, reference = build(grants, overdraft)
    requests = [uuid7() for _ in range(8)]
    with open_desk() as desk:
        for step in steps:
            if isinstance(step, tuple):
                overdrawn = sum(g.remaining for g in reference.purses[rows[step[0]].pk].grants)
                if overdrawn <= reference.purses[rows[step[0]].pk].posted:
                    give(reference, rows[step[0]], step[1], kind=CreditGrant.Kind.PAID, models=step[2])
                continue
            operations = [operation(choice, rows, requests) for choice in step]
            operations = [op for op in operations if not_reused(op, reference)]
            for group in groups_of_distinct(operations, 64):
                fresh = [op for op in group if not_reused(op, reference)]
                if fresh:
                    assert desk.ask(*fresh) == [reference.apply(op) for op in fresh]
    assert_rows(rows, reference)
    assert reconcile.check(connection, recompute=False) == []


@given(steps=steps, grants=first_grants, overdraft=st.integers(0, 30))
@EXAMPLES
def test_apply_now_equals_one_operation_at_a_time(transactional_db, steps, grants, overdraft):
    rows, reference = build(grants, overdraft)
    requests = [uuid7() for _ in range(8)]
    for step in steps:
        if isinstance(step, list):
            operations, expected = [], []
            for choice in step:
                op = operation(choice, rows, requests)
                if not_reused(op, reference):
                    operations.append(op)
                    expected.append(reference.apply(op))
            assert apply_now(operations) == expected
    assert_rows(rows, reference)


def not_reused(op, reference):
    """A request id is made once: a closed one is never reserved again."""
    return not (isinstance(op, Reserve) and op.request in reference.records)
