from __future__ import annotations

import uuid

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing import triggers
from billing.models import (
    CostSample,
    LedgerAccount,
    LedgerTransfer,
    Plan,
    PlanVersion,
    Rate,
    RateCard,
    RateCardVersion,
    UsageRecord,
)

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


@pytest.fixture
def transfer():
    one = LedgerAccount.objects.create(kind="usage")
    other = LedgerAccount.objects.create(kind="breakage")
    return LedgerTransfer.objects.create(debit=one, credit=other, amount=5, code=LedgerTransfer.Code.ADJUSTMENT)


@pytest.fixture
def plan_version():
    plan = Plan.objects.create(slug="odd", name="Odd")
    limits = {"request_limit": 1, "request_burst": 1, "credit_limit": 1, "credit_burst": 1, "concurrency": 1}
    return PlanVersion.objects.create(plan=plan, number=1, **limits)


@pytest.fixture
def record():
    some = uuid.uuid4()
    now = timezone.now()
    return UsageRecord.objects.create(
        day=now.date(), request=some, tenant=some, project=some, wallet=some, model="m", deployment=some,
        card_version=some, charge=1, held=1, reserved_at=now,
    )  # fmt: skip


@pytest.fixture
def published():
    version = RateCardVersion.objects.create(card=RateCard.objects.create(name="c"), effective_from=timezone.now())
    Rate.objects.create(version=version, usage_class="input", rate=1)
    RateCardVersion.objects.filter(pk=version.pk).update(published_at=timezone.now())
    return version


def refused(change):
    with pytest.raises(IntegrityError, match=r"append-only|final"), transaction.atomic():
        change()


@pytest.mark.parametrize("name", ["transfer", "plan_version", "record", "published"])
def test_guarded_rows_are_neither_updated_nor_deleted(request, name):
    row = request.getfixturevalue(name)
    rows = type(row)._default_manager.filter(pk=row.pk)
    field = next(f for f in row._meta.concrete_fields if not f.primary_key and not f.is_relation)
    refused(lambda: rows.update(**{field.name: getattr(row, field.name)}))
    refused(lambda: rows._raw_delete(using="default"))
    assert rows.exists()


@pytest.mark.parametrize(
    ("name", "erased"),
    [
        ("transfer", {"actor": "erased", "reason": "erased"}),
        ("record", {"model": "erased/1", "route": {}, "end_user": ""}),
    ],
)
def test_names_are_erased_and_nothing_else_changes_with_them(request, name, erased):
    row = request.getfixturevalue(name)
    rows = type(row)._default_manager.filter(pk=row.pk)
    before = rows.values().get()
    for field in erased:
        refused(lambda field=field: rows.update(**{field: "another"}))
    amount = "amount" if name == "transfer" else "charge"
    refused(lambda: rows.update(**erased, **{amount: 6}))
    refused(lambda: rows.update(**erased, **{"key" if name == "transfer" else "finish": "k"}))
    rows.update(**erased)
    assert rows.values().get() == {**before, **erased}
    refused(lambda: rows.update(**erased))


def test_rates_of_a_published_version_are_final_and_none_is_added(published):
    refused(lambda: Rate.objects.create(version=published, usage_class="output", rate=1))
    refused(lambda: Rate.objects.filter(version=published).update(rate=2))
    refused(lambda: Rate.objects.filter(version=published).delete())


def test_drafts_may_change():
    version = RateCardVersion.objects.create(card=RateCard.objects.create(name="c"), effective_from=timezone.now())
    rate = Rate.objects.create(version=version, usage_class="input", rate=1)
    Rate.objects.filter(pk=rate.pk).update(rate=2)
    version.note = "better"
    version.save()
    rate.delete()
    version.delete()
    assert not RateCardVersion.objects.exists()


def test_replace_and_truncate_are_refused(transfer):
    table = LedgerTransfer._meta.db_table

    def replace():
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(f"TRUNCATE {table}")
            else:
                cursor.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")

    refused(replace)
    assert LedgerTransfer.objects.get() == transfer


def drop_first():
    """Drop the first guard; returns its name and statement."""
    [spec, *_] = triggers.GUARDED
    name, statement = next(spec.statements(connection.vendor))
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TRIGGER "{name}"' + (f" ON {spec.table}" if connection.vendor == "postgresql" else ""))
    return name, statement


def test_a_dropped_guard_is_missed_and_installed_again():
    assert triggers.missing() == []
    name, _ = drop_first()
    assert triggers.missing() == [name]
    triggers.install()
    triggers.install()
    assert triggers.missing() == []


def test_a_guard_of_another_release_is_there_until_setup_replaces_it():
    name, statement = drop_first()
    with connection.cursor() as cursor:
        cursor.execute(statement.replace(name, f"{name[:-8]}00000000"))
    assert triggers.missing() == []
    triggers.install()
    expected = {name for spec in triggers.GUARDED for name, _ in spec.statements(connection.vendor)}
    assert triggers._GUARDS.present(connection).keys() == expected


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", [1, 2])
def test_transactional_tests_start_empty_and_guarded(turn, transfer):
    assert LedgerTransfer.objects.count() == 1
    assert triggers.missing() == []


def test_cost_samples_refuse_changes():
    sample = CostSample.objects.create(
        deployment=uuid.uuid4(), name="d", model="m", device="d", seconds={}, rates={}, price={}, proposal={},
        residual=0.0, recovery=1.0,
    )  # fmt: skip
    refused(lambda: CostSample.objects.filter(pk=sample.pk).update(rates={"input": 1}))
    refused(sample.delete)
