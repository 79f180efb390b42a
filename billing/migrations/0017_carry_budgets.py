from datetime import UTC, datetime, time

from django.db import migrations, transaction
from django.db.models import F, Max

CALENDAR = datetime(2001, 1, 1, tzinfo=UTC)


def carry_over(apps, schema_editor):
    """Make of each key's limits budgets of the key, one for each window, with what counts in them now: a transaction
    for each key, so that nobody waits for all of them. Repeated it goes on with those that are left.

    Periodic work takes over what the release before spends and sets from now on, also for keys that have such budgets
    already.
    """
    alias = schema_editor.connection.alias
    former = apps.get_model("billing", "Budget").objects.using(alias).filter(carried=None)
    for pk, wallet in list(former.values_list("pk", "wallet")):
        with transaction.atomic(using=alias):
            carry(apps, alias, pk, wallet)


def carry(apps, alias, pk, wallet):
    """Carry over the limits of one key, under its wallet's lock."""
    Wallet, Budget, SpendBudget, BudgetWindow = (
        apps.get_model("billing", name).objects.using(alias)
        for name in ("Wallet", "Budget", "SpendBudget", "BudgetWindow")
    )
    Wallet.filter(pk=wallet).update(version=F("version") + 1)
    one = Budget.filter(pk=pk, carried=None).select_related("wallet").first()
    if one is None or SpendBudget.filter(wallet=wallet, scope="key", subject=str(one.api_key)).exists():
        return
    number = SpendBudget.filter(wallet=wallet).aggregate(last=Max("number"))["last"] or 0
    for window, begin in (("day", one.day), ("month", one.month), ("total", None)):
        number += 1
        limit = getattr(one, f"{window}_limit")
        SpendBudget.create(
            wallet_id=wallet, tenant=one.wallet.tenant_id, number=number, scope="key", subject=str(one.api_key),
            window=window, anchor=CALENDAR, amount=limit, thresholds=[],
            removed_at=datetime.now(UTC) if limit is None else None,
        )  # fmt: skip
        minute = 0 if begin is None else int(datetime.combine(begin, time(), UTC).timestamp()) // 60
        spent = getattr(one, f"{window}_spent")
        BudgetWindow.create(wallet_id=wallet, number=number, start=minute, spent=spent, held=0, carried=spent)
    Budget.filter(pk=pk).update(carried=one.total_spent)


class Migration(migrations.Migration):

    atomic = False

    dependencies = [
        ("billing", "0016_budgets"),
    ]

    operations = [
        migrations.RunPython(carry_over, migrations.RunPython.noop),
    ]
