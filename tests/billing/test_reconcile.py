from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.utils import timezone

from base.ids import uuid7
from billing import reconcile, triggers
from billing.models import (
    BudgetWindow,
    CheckedSum,
    CreditGrant,
    Hold,
    LedgerAccount,
    LedgerTransfer,
    OutboxEvent,
    Rate,
    RateCard,
    RateCardVersion,
    Reconciliation,
    UsageDay,
    UsageRecord,
    UsageRollup,
    Wallet,
)
from billing.rating import CardPrices, charge
from billing.services import budgets, credits, rollups
from billing.services.reconciliation import reconcile_if_due
from billing.writer.apply import apply_now
from billing.writer.operations import Bearing, Reserve, Settle, TrueUp
from tests.billing.writer.world import make_budget, make_wallet

pytestmark = [pytest.mark.contract, pytest.mark.django_db]

CLASSES = {"input": 1000, "cache_read": 10, "output": 77}


@pytest.fixture
def card():
    version = RateCardVersion.objects.create(
        card=RateCard.objects.create(name="card"), effective_from=timezone.now(), request_fee=3
    )
    rates = {"input": 1_000_000, "cache_read": 100_000, "output": 3_000_000}
    for name, rate in rates.items():
        Rate.objects.create(version=version, usage_class=name, rate=rate)
    RateCardVersion.objects.filter(pk=version.pk).update(published_at=timezone.now())
    return CardPrices.build(version.pk, 3, [(0, name, rate) for name, rate in rates.items()])


@pytest.fixture
def wallet():
    return make_wallet(credit=100_000)


def serve(wallet, card, *, settle_with=None, exact=True, budget=None):
    some = uuid7()
    made = Reserve(
        request=uuid7(), wallet=wallet.pk, amount=5_000, least=1, owner=some, deployment=some, card_version=card.id,
        tenant=wallet.tenant_id, project=some, api_key=None, model="m", multiplier_bp=9_000,
        budgets=Bearing((budgets.terms_of(budget),) if budget else ()),
    )  # fmt: skip
    amount = charge(CLASSES, card, 9_000) if settle_with is None else settle_with
    apply_now([made, Settle(made.request, wallet.pk, amount, CLASSES, exact=exact)])
    return made


def checks():
    return sorted({finding.check for finding in reconcile.check(connection)})


def test_right_books_have_no_findings(wallet, card, capsys):
    serve(wallet, card)
    assert checks() == []
    call_command("reconcile")
    assert "the books are right" in capsys.readouterr().out


def test_a_wrong_charge_is_found_by_rating_again(wallet, card):
    made = serve(wallet, card, settle_with=1)
    assert [(f.check, f.subject) for f in reconcile.check(connection)] == [("charge_recomputed", str(made.request))]
    with pytest.raises(CommandError, match="1 findings"):
        call_command("reconcile")


def test_corrected_books_have_no_findings_and_a_wrong_revision_is_found(wallet, card):
    for fewer in (2, -50):
        made = serve(wallet, card, exact=False)
        classes = CLASSES | {"output": CLASSES["output"] - fewer}
        apply_now([TrueUp(made.request, wallet.pk, charge(classes, card, 9_000), classes)])
    assert checks() == []
    last = UsageRecord.objects.get(request=made.request, revision=1)
    last.pk, last.revision = uuid7(), 2
    last.save(force_insert=True)
    assert checks() == ["revision_without_reason"]
    last.pk, last.revision, last.charge = uuid7(), 3, last.charge + 1
    last.save(force_insert=True)
    assert checks() == ["charge_recomputed", "revision_without_reason", "usage_charge"]


def test_each_sum_that_is_off_is_found(wallet, card):
    made = serve(wallet, card)
    Wallet.objects.filter(pk=wallet.pk).update(posted=1, held=2)
    CreditGrant.objects.update(remaining=5)
    usage, account = LedgerAccount.objects.get(kind="usage"), wallet.accounts.get()
    for request in (made.request, uuid7()):
        LedgerTransfer.objects.create(
            debit=account, credit=usage, amount=1, code=LedgerTransfer.Code.CHARGE, request=request, order=7
        )
    assert checks() == ["charge_without_usage", "grant_remaining", "usage_charge", "wallet_held", "wallet_posted"]


def test_a_wallet_below_its_limit_is_found(wallet, card):
    """Its sums all agree: time and a race had taken it there."""
    account, breakage = wallet.accounts.get(), LedgerAccount.objects.get(kind="breakage")
    wallet.refresh_from_db()
    taken = wallet.posted + 5
    LedgerTransfer.objects.create(debit=account, credit=breakage, amount=taken, code=LedgerTransfer.Code.EXPIRY)
    Wallet.objects.filter(pk=wallet.pk).update(posted=-5, overdraft_limit=4)
    assert checks() == ["wallet_below_limit"]
    Wallet.objects.filter(pk=wallet.pk).update(overdraft_limit=5)
    assert checks() == []


@pytest.mark.parametrize(
    ("pools", "found"),
    [
        ('{"m":[30,7],"n":[20,5]}', []),
        ('{"m":[29,7],"n":[20,5]}', ["pool_rest"]),
        ('{"m":[30,7]}', ["pool_rest"]),
        ('{"m":[30,8],"n":[20,5]}', ["pool_held"]),
        ('{"m":[30,7],"n":[20,5],"o":[1,0]}', ["pool_rest"]),
        ("", ["pool_rest"]),
    ],
)
def test_pools_that_are_not_what_grants_and_holds_say_are_found(wallet, give, hold, pools, found):
    give(30, models=["m"])
    give(20, models=["n"])
    hold(7)
    Hold.objects.filter(pk=hold(5).pk).update(model="n")
    Wallet.objects.filter(pk=wallet.pk).update(pools=pools)
    assert checks() == found


def test_a_hold_that_stands_on_another_models_credit_is_found(wallet, give, hold):
    give(20, models=["n"])
    wallet.refresh_from_db()
    hold(wallet.posted - 20)
    assert checks() == []
    hold(1)
    assert checks() == ["pool_below_limit"]


def test_stray_holds_and_missing_accounts_are_found(wallet, card):
    made = serve(wallet, card)
    some, long_ago = uuid7(), timezone.now() - timedelta(hours=1)
    for request, target, lease in ((made.request, wallet.pk, timezone.now()), (some, some, long_ago)):
        Hold.objects.create(
            id=request, wallet_id=target, tenant=some, project=some, model="m", deployment=some, card_version=some,
            amount=0, owner=some, reserved_at=lease, lease_until=lease,
        )  # fmt: skip
    Wallet.objects.create(tenant=wallet.tenant, name="bare")
    assert checks() == ["hold_left_open", "hold_without_wallet", "usage_while_held", "wallet_without_account"]


def test_a_missing_trigger_is_found(wallet):
    spec = triggers.GUARDED[0]
    name, _ = next(spec.statements(connection.vendor))
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TRIGGER "{name}"' + (f" ON {spec.table}" if connection.vendor == "postgresql" else ""))
    assert [(f.check, f.subject) for f in reconcile.check(connection)] == [("trigger_missing", name)]


def shifted(wallet, more):
    """Change everything that a charge changes by `more`, as somebody would who knows the tables."""
    Wallet.objects.filter(pk=wallet.pk).update(posted=F("posted") - more)
    CreditGrant.objects.filter(wallet=wallet).update(remaining=F("remaining") - more)


def dearer(wallet, record):
    UsageRecord.objects.filter(pk=record.pk).update(charge=record.charge + 9)
    LedgerTransfer.objects.filter(request=record.request).update(amount=F("amount") + 9)
    shifted(wallet, 9)


def longer(wallet, record):
    """More output than there was, at its right price."""
    more = 1000 * 3 * 9_000 // 10_000
    UsageRecord.objects.filter(pk=record.pk).update(
        output_tokens=record.output_tokens + 1000, charge=record.charge + more
    )
    LedgerTransfer.objects.filter(request=record.request).update(amount=F("amount") + more)
    shifted(wallet, more)


def gone(wallet, record):
    LedgerTransfer.objects.filter(request=record.request).delete()
    record.delete()
    shifted(wallet, -record.charge)


def moved(wallet, record):
    """Another tenant pays."""
    other = make_wallet(credit=100_000)
    LedgerTransfer.objects.filter(request=record.request).update(
        debit=other.accounts.get(), grant=CreditGrant.objects.get(wallet=other)
    )
    shifted(wallet, -record.charge)
    shifted(other, record.charge)


def changed(table, **fields):
    """A seed of the same change in every row."""
    return lambda *_: table.objects.update(**fields)


SEEDED = {
    "wallet_posted": changed(Wallet, posted=F("posted") + 1),
    "wallet_held": changed(Wallet, held=1),
    "budget_held": changed(Wallet, windows='{"1.0":[0,1,null,true]}'),
    "budget_spent": changed(Wallet, windows=""),
    "budget_spent of one that isn't kept": lambda wallet, _: BudgetWindow.objects.create(
        wallet=wallet, number=7, start=0, spent=1, held=0
    ),
    "budget_held of one that isn't kept": lambda wallet, _: BudgetWindow.objects.create(
        wallet=wallet, number=7, start=0, spent=0, held=1
    ),
    "grant_remaining": changed(CreditGrant, remaining=F("remaining") - 1),
    "grant_amount": changed(CreditGrant, amount=F("amount") + 1),
    "rollup_sums": changed(UsageRollup, charge=F("charge") + 1),
    "rollup_sums of another model": changed(UsageRollup, model="n"),
    "day_sums": changed(UsageDay, charge=F("charge") + 1),
    "charge_recomputed": dearer,
    "rollup_sums of a longer answer": longer,
    "rollup_sums of a deleted record": gone,
    "transfer_of_another_wallet": moved,
    "usage_of_another_wallet": changed(UsageRecord, tenant=uuid7()),
}


def traffic(wallet, card):
    """A request with a correction, and one that has none, both in a budget."""
    budget = wallet.spend_budgets.first() or make_budget(wallet, 100_000)
    made = serve(wallet, card, exact=False, budget=budget)
    classes = CLASSES | {"output": CLASSES["output"] - 2}
    apply_now([TrueUp(made.request, wallet.pk, charge(classes, card, 9_000), classes)])
    made = serve(wallet, card, budget=budget)
    while rollups.consume_usage():
        pass
    return UsageRecord.objects.get(request=made.request)


@pytest.mark.parametrize("seeded", SEEDED)
def test_each_seeded_error_is_found(wallet, card, seeded):
    record = traffic(wallet, card)
    assert checks() == []
    with triggers.suspended(connection):
        SEEDED[seeded](wallet, record)
    assert seeded.split()[0] in checks()


# -- what came since the last good check -------------------------------------------------------------------------------


@pytest.fixture
def settled(monkeypatch):
    """All that is booked counts as committed at once."""
    monkeypatch.setattr(reconcile, "SETTLED", timedelta(0))


def hourly():
    run = reconcile_if_due(timedelta(0))
    assert not run.is_whole
    assert run.done == run.rows
    return sorted({one["check"] for one in run.findings})


def noted():
    sums = CheckedSum.objects.exclude(amount=0).values_list("kind", "subject", "name", "amount")
    return sorted((kind, str(subject), *rest) for kind, subject, *rest in sums)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "seeded",
    [
        pytest.param(
            one,
            marks=[] if one in {"grant_remaining", "rollup_sums", "transfer_of_another_wallet"} else pytest.mark.sweep,
        )
        for one in SEEDED
        if one != "budget_spent of one that isn't kept"
    ],
)
def test_the_hourly_check_finds_each_error_in_what_is_new(card, seeded):
    traffic(make_wallet(credit=100_000), card)
    assert reconcile_if_due(timedelta(0)).is_whole
    wallet = make_wallet(credit=100_000)
    record = traffic(wallet, card)
    with triggers.suspended(connection):
        SEEDED[seeded](wallet, record)
    assert seeded.split()[0] in hourly()
    assert seeded.split()[0] in hourly(), "until it is mended"


@pytest.mark.usefixtures("settled")
def test_what_leaves_a_grant_of_before_does_not_fill_it(wallet, card):
    traffic(wallet, card)
    assert reconcile_if_due(timedelta(0)).is_whole
    credits.adjust(wallet_id=wallet.pk, amount=-7, key="less", actor="a", reason="r")
    assert hourly() == []


@pytest.mark.usefixtures("settled")
def test_an_error_in_old_rows_is_found_by_the_whole_check_alone(wallet, card, capsys):
    record = traffic(wallet, card)
    reconcile_if_due(timedelta(0))
    with triggers.suspended(connection):
        UsageRecord.objects.filter(pk=record.pk).update(multiplier_bp=1)
    traffic(wallet, card)
    assert hourly() == []
    call_command("reconcile")
    assert "all was checked last: 2" in capsys.readouterr().out
    with pytest.raises(CommandError, match="1 findings"):
        call_command("reconcile", "--whole")
    assert "charge_recomputed" in capsys.readouterr().out
    assert hourly() == [], "it goes on from where the last good one ended"


@pytest.mark.usefixtures("settled")
def test_what_the_hourly_checks_note_is_what_the_whole_one_adds_up(card):
    wallets = [make_wallet(credit=100_000) for _ in range(2)]
    reconcile_if_due(timedelta(0))
    for round_ in range(3):
        for wallet in wallets[round_ % 2 :]:
            traffic(wallet, card)
        assert hourly() == []
    of_hourly = noted()
    assert {one[0] for one in of_hourly} == {"wallet", "grant", "window"}
    assert reconcile_if_due(timedelta(0), whole=True).found == 0
    assert noted() == of_hourly
    first = Reconciliation.objects.order_by("id").first()
    traffic(wallets[0], card)
    last = reconcile_if_due(timedelta(0))
    assert last.rows < Reconciliation.objects.get(pk=last.pk - 1).rows / 2, "it reads what is new"
    assert first.is_whole


@pytest.mark.usefixtures("settled")
def test_a_request_that_ran_through_a_check_counts_in_the_next(wallet, card):
    budget = make_budget(wallet, 10_000)
    some = uuid7()
    long = Reserve(
        request=uuid7(), wallet=wallet.pk, amount=5_000, least=1, owner=some, deployment=some, card_version=card.id,
        tenant=wallet.tenant_id, project=some, api_key=None, model="m", multiplier_bp=9_000,
        budgets=Bearing((budgets.terms_of(budget),)),
    )  # fmt: skip
    apply_now([long])
    reconcile_if_due(timedelta(0))
    apply_now([Settle(long.request, wallet.pk, charge(CLASSES, card, 9_000), CLASSES)])
    assert hourly() == []
    serve(wallet, card, budget=budget)
    assert hourly() == []


def test_what_is_not_summed_yet_is_no_error(wallet, card):
    serve(wallet, card)
    rollups.consume_usage()
    made = serve(wallet, card, exact=False)
    assert checks() == []
    rollups.consume_usage()
    apply_now([TrueUp(made.request, wallet.pk, 0, {})])
    assert checks() == []
    OutboxEvent.objects.all().delete()
    assert checks() == ["rollup_sums"]
